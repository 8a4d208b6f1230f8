"""How weights were drawn, told by their statistics."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

STDS = {
    "kaiming fan_out": lambda fan_in, fan_out: math.sqrt(2 / fan_out),
    "kaiming fan_in": lambda fan_in, fan_out: math.sqrt(2 / fan_in),
    "torch": lambda fan_in, fan_out: 1 / math.sqrt(3 * fan_in),
    "xavier": lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
    "lecun": lambda fan_in, fan_out: 1 / math.sqrt(fan_in),
}
"""Standard deviations by rule; "torch" is that of its linear layers and convolutions, evenly in +-1/sqrt(fan in)."""
FAMILIES = {"uniform": (1.70, 1.74), "normal cut at one deviation": (1.84, 1.92), "truncated normal": (2.2, 2.32),
            "normal": (2.6, 9.0)}  # fmt: skip
"""Ranges of the largest value over the standard deviation; the truncated one is cut at two deviations of the normal."""


class Drawn(frozenset[str]):
    """The ways in which weights may have been drawn, such as "normal 0.01", "xavier uniform" and "constant 0": one or
    several whose numbers agree. A fact names one of them."""

    def __str__(self) -> str:
        return sorted(self)[0]


def drawn(weights: Sequence[Tensor], fans: Sequence[tuple[int, int]] = ()) -> Drawn:
    """How all of these tensors were drawn.

    Args:
        weights: of the layers of one kind.
        fans: fan in and fan out of each; none for tokens and biases, where a rule needs the fan in give it twice.
    """
    values = [weight.detach().float().flatten() for weight in weights]
    if all(bool((value == value[0]).all()) for value in values):
        constants = sorted({round(float(value[0]), 9) for value in values})
        return Drawn({"constant " + " and ".join(f"{constant:g}" for constant in constants)})
    stds = [float(value.std()) for value in values]
    families = _families(values, stds)
    rules = {
        f"{rule} {family}".replace("torch uniform", "torch")
        for rule, std in STDS.items()
        for family in families
        if fans and all(_near(found, std(*fan), value) for found, fan, value in zip(stds, fans, values, strict=True))
    }
    if rules:
        return Drawn(rules)
    # of all values together: a tensor of few says little
    mean = sum(std * value.numel() for std, value in zip(stds, values, strict=True)) / sum(map(len, values))
    if all(_near(found, mean, value) for found, value in zip(stds, values, strict=True)):
        numbers = _two_digits(mean, _slack(values))
        return Drawn({f"{family} {number:g}" for family in families for number in numbers})
    return Drawn({f"{family} {min(stds):.2g} to {max(stds):.2g}" for family in families})


def fans_of(weight: Tensor) -> tuple[int, int]:
    """Fan in and fan out of a linear layer's or a convolution's weight."""
    area = math.prod(weight.shape[2:])
    return weight.shape[1] * area, weight.shape[0] * area


def _near(found: float, wanted: float, value: Tensor) -> bool:
    return abs(found / wanted - 1) < 0.01 + _slack([value])


def _slack(values: Sequence[Tensor]) -> float:
    """How far the deviation of so many numbers may lie from that of their distribution, as a share of it."""
    return 4 / math.sqrt(2 * sum(value.numel() for value in values))


def _two_digits(mean: float, slack: float) -> list[float]:
    """Numbers of two digits that a deviation may stand for: the nearest one, and all within the slack."""
    nearest, unit = float(f"{mean:.2g}"), 10.0 ** (math.floor(math.log10(mean)) - 1)
    near = [float(f"{count * unit:.2g}") for count in range(1, 200) if abs(count * unit / mean - 1) < slack]
    return [nearest, *near]


def _families(values: Sequence[Tensor], stds: Sequence[float]) -> list[str]:
    """Distributions that the largest value may come from; few numbers leave several."""
    most = max(range(len(values)), key=lambda index: values[index].numel())
    ratio = float(values[most].abs().max() / torch.tensor(stds[most]))
    slack = _slack([values[most]]) / 2
    near = [name for name, (low, high) in FAMILIES.items() if low * (1 - slack) <= ratio <= high * (1 + slack)]
    return near or [f"(largest {ratio:.2f} deviations)"]
