"""Courses of VISSL's learning rate as raysl's `optim` settings.

VISSL rewrites the values of a schedule where `auto_lr_scaling.auto_scale` is on: the peak becomes `base_value` times
the batch over `base_lr_batch_size`, the start of a linear warm-up that of the images of one node, and on one node the
warm-up is dropped.
"""

import math
from dataclasses import dataclass
from typing import Any

from raysl.errors import ConfigError
from raysl.translation.vissl_settings import checked, numbers, steps

LR = "OPTIMIZER.param_schedulers.lr"
DIGITS = 10


@dataclass(frozen=True)
class Batch:
    """Images of each process of a batch, and the machines and the processes on each that they are spread over."""

    per_worker: int
    nodes: int
    per_node: int

    @property
    def workers(self) -> int:
        """Processes of all machines."""
        return self.nodes * self.per_node

    @property
    def size(self) -> int:
        """Images of the global batch."""
        return self.per_worker * self.workers


@dataclass(frozen=True)
class Scaling:
    """The learning rate of a batch, where VISSL computes it.

    Args:
        base: learning rate of `of` images.
        of: images.
        kind: linear or sqrt.
    """

    base: float
    of: int
    kind: str

    def factor(self, batch: Batch) -> float:
        """Return the learning rate of the whole batch as a multiple of `base`."""
        share = batch.size / self.of
        return math.sqrt(share) if self.kind == "sqrt" else share

    def peak(self, batch: Batch) -> float:
        """Return the learning rate of the whole batch."""
        return self.base * self.factor(batch)

    def start(self, batch: Batch) -> float:
        """Return the learning rate at which VISSL begins a linear warm-up: that of one node's images."""
        return self.base * batch.per_worker * batch.per_node / self.of


@dataclass(frozen=True)
class Course:
    """A translated course.

    Args:
        peak: learning rate that the shares in the settings are of.
        settings: settings of `optim`, without its name, `lr` and its scaling.
        notes: remarks for the reader.
    """

    peak: float
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()


def course(node: dict[str, Any], epochs: int, batch: Batch, scaling: Scaling | None) -> Course:
    """Translate a schedule."""
    name = node.get("name")
    if name == "composite":
        result = _composite(node, epochs, batch, scaling)
    else:
        result = _single(node, None if scaling is None else scaling.peak(batch))
    if node.get("update_interval", "epoch") == "step" and result.settings.get("optim.schedule") != "steps":
        result.settings["optim.update_every"] = "step"
    by_epoch = node.get("update_interval", "epoch") == "epoch" and result.settings.get("optim.schedule") != "constant"
    if by_epoch and (result.settings.get("optim.schedule") != "steps" or result.settings.get("optim.warmup") != "0ep"):
        result.settings["optim.update_every"] = "epoch"
    return result


def _single(node: dict[str, Any], scaled: float | None) -> Course:
    name = node.get("name")
    if name == "multistep":
        return _steps(node, scaled)
    if name == "cosine":
        start, end = _value(node, "start_value"), _value(node, "end_value")
        settings = {"optim.schedule": "cosine", "optim.warmup": "0ep", "optim.final_lr": _share(end, start)}
        return Course(start if scaled is None else scaled, settings)
    if name == "constant":
        settings = {"optim.schedule": "constant", "optim.warmup": "0ep"}
        return Course(_value(node, "value") if scaled is None else scaled, settings)
    raise ConfigError(f"{LR}.name: no counterpart of {name!r}; give optim.schedule=NAME and optim.lr=NUMBER yourself")


def _steps(node: dict[str, Any], scaled: float | None) -> Course:
    """Steps at epochs; scaling keeps the first factor alone, as VISSL does."""
    values = numbers(node.get("values"), f"{LR}.values", 1)
    notes: tuple[str, ...] = ()
    shares = [_share(value, values[0]) for value in values]
    if scaled is not None and len(values) > 1:
        factor = round(_share(values[1], values[0]), 6)
        if steps(shares) is None:
            notes = (f"auto scaling repeats the first factor, {factor:g}, at every step",)
        shares = [_round(factor**number) for number in range(len(values))]
    points = numbers(node.get("milestones"), f"{LR}.milestones")
    settings: dict[str, Any] = {"optim.schedule": "steps", "optim.warmup": "0ep"}
    settings["optim.decay_at"] = [f"{point:g}ep" for point in points]
    factor_of_all = steps(shares)
    settings |= {"optim.values": shares} if factor_of_all is None else {"optim.decay_factor": factor_of_all}
    return Course(values[0] if scaled is None else scaled, settings, notes)


def _composite(node: dict[str, Any], epochs: int, batch: Batch, scaling: Scaling | None) -> Course:
    """A linear warm-up and a cosine or steps after it."""
    listed = checked(node.get("schedulers"), (list,), f"{LR}.schedulers", "a list")
    parts = [dict(checked(part, (dict,), f"{LR}.schedulers", "a list of groups")) for part in listed]
    names = [part.get("name") for part in parts]
    if len(parts) != 2 or names[0] != "linear" or names[1] not in ("cosine", "multistep"):
        raise ConfigError(
            f"{LR}.schedulers: no counterpart of {', '.join(map(str, names))} by itself; give optim.phases yourself"
        )
    if scaling is None:
        return _after_warmup(node, parts, epochs, None)
    if batch.nodes == 1:
        rest = _single(parts[1], scaling.peak(batch))
        note = "on one node VISSL drops the warm-up, which raysl would keep; so there is none here"
        return Course(rest.peak, rest.settings, (*rest.notes, note))
    parts[0] |= {"start_value": scaling.start(batch), "end_value": scaling.peak(batch)}
    return _after_warmup(node, parts, epochs, scaling.peak(batch))


def _after_warmup(node: dict[str, Any], parts: list[dict[str, Any]], epochs: int, scaled: float | None) -> Course:
    lengths = numbers(node.get("lengths"), f"{LR}.lengths", len(parts))
    scalings = checked(node.get("interval_scaling", []), (list,), f"{LR}.interval_scaling", "a list of words")
    modes = [*(str(mode) for mode in scalings), *["rescaled"] * len(parts)][: len(parts)]
    rest = _single(parts[1], scaled)
    start, end = _value(parts[0], "start_value"), _value(parts[0], "end_value")
    notes = list(rest.notes)
    if modes[0] == "fixed":
        notes.append("a fixed warm-up is the first part of a line over the whole run, which ends below its end_value")
        end = start + (end - start) * lengths[0]
    if abs(end - rest.peak) > 1e-6 * max(end, rest.peak):
        notes.append(f"the warm-up ends at {end:g} in VISSL, and at the peak here")
    if start == 0:
        notes.append("VISSL's first update has the learning rate 0, here it has that of the second")
    settings = {**rest.settings, "optim.warmup": _percent(lengths[0])}
    settings["optim.warmup_start"] = _share(start, rest.peak)
    if parts[1].get("name") == "cosine":
        settings["optim.cosine_from"] = "start" if modes[1] == "fixed" else "warmup"
    elif modes[1] != "fixed":
        # rescaled milestones count epochs of the whole run, and are squeezed into the part after the warm-up
        points = numbers(parts[1].get("milestones"), f"{LR}.milestones")
        settings["optim.decay_at"] = [_percent(lengths[0] + lengths[1] * point / epochs) for point in points]
    return Course(rest.peak, settings, tuple(notes))


def _value(node: dict[str, Any], key: str) -> float:
    return float(checked(node.get(key), (int, float), f"{LR}.{key}", "a number"))


def _share(value: float, of: float) -> float:
    return _round(value / of) if of else 0.0


def _round(share: float) -> float:
    return round(share, DIGITS)


def _percent(share: float) -> str:
    return f"{100 * share:.8g}%"
