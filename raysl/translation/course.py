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
    """Translate a schedule, a group with VISSL's defaults in it; `scaling` is None where VISSL does not scale it."""
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
    if name in ("multistep", "step"):
        return _steps(node, scaled)
    if name == "cosine":
        start, end = _value(node, "start_value"), _value(node, "end_value")
        return _down("cosine", start if scaled is None else scaled, _share(end, start))
    if name == "linear":
        start, end = _value(node, "start_value"), _value(node, "end_value")
        end = end if scaled is None else scaled
        if start < end:
            parts = [{"shape": "linear", "length": "100%", "start": _share(start, end), "end": 1.0}]
            return Course(end, {"optim.phases": parts})
        return _down("linear", start, _share(end, start))
    if name == "constant":
        return Course(
            _value(node, "value") if scaled is None else scaled, {"optim.schedule": "constant", "optim.warmup": "0ep"}
        )
    if name == "polynomial":
        settings = {"optim.schedule": "polynomial", "optim.warmup": "0ep", "optim.power": _value(node, "power")}
        return Course(_value(node, "base_lr") if scaled is None else scaled, settings)
    if name == "step_with_fixed_gamma":
        settings = {"optim.schedule": "steps", "optim.warmup": "0ep"}
        settings |= {"optim.num_decays": int(_value(node, "num_updates")), "optim.decay_factor": _value(node, "gamma")}
        return Course(_value(node, "base_value") if scaled is None else scaled, settings)
    if name == "cosine_warm_restart":
        return _restarts(node, scaled)
    raise ConfigError(f"{LR}.name: no counterpart of {name!r}; give optim.schedule=NAME and optim.lr=NUMBER yourself")


def _down(schedule: str, peak: float, final: float) -> Course:
    settings = {"optim.schedule": schedule, "optim.warmup": "0ep", "optim.final_lr": _round(final)}
    return Course(peak, settings)


def _steps(node: dict[str, Any], scaled: float | None) -> Course:
    """`multistep` at epochs, and `step` in even parts; scaling keeps the first factor alone, as VISSL does."""
    values = numbers(node.get("values"), f"{LR}.values", 1)
    notes: tuple[str, ...] = ()
    shares = [_share(value, values[0]) for value in values]
    if scaled is not None and len(values) > 1:
        factor = round(_share(values[1], values[0]), 6)
        if steps(shares) is None:
            notes = (f"auto scaling repeats the first factor, {factor:g}, at every step",)
        shares = [_round(factor**number) for number in range(len(values))]
    settings: dict[str, Any] = {"optim.schedule": "steps", "optim.warmup": "0ep"}
    if node.get("name") == "multistep":
        points = numbers(node.get("milestones"), f"{LR}.milestones")
        settings["optim.decay_at"] = [f"{point:g}ep" for point in points]
    elif steps(shares) is not None:
        settings["optim.num_decays"] = len(shares) - 1
    factor_of_all = steps(shares)
    if factor_of_all is not None:
        settings["optim.decay_factor"] = factor_of_all
    else:
        settings["optim.values"] = shares
    return Course(values[0] if scaled is None else scaled, settings, notes)


def _restarts(node: dict[str, Any], scaled: float | None) -> Course:
    start, end = _value(node, "start_value"), _value(node, "end_value")
    settings = {
        "optim.schedule": "restarts",
        "optim.warmup": "0ep",
        "optim.final_lr": _round(_share(end, start)),
        "optim.restart_every": _percent(_value(node, "restart_interval_length")),
        "optim.restart_wave": node.get("wave_type", "half"),
        "optim.restart_factor": node.get("lr_multiplier", 1.0),
        "optim.restart_peak": "cosine" if node.get("is_adaptive", False) else "factor",
    }
    return Course(start if scaled is None else scaled, settings)


def _composite(node: dict[str, Any], epochs: int, batch: Batch, scaling: Scaling | None) -> Course:
    """A linear warm-up and one more part, or any parts that `optim.phases` has."""
    listed = checked(node.get("schedulers"), (list,), f"{LR}.schedulers", "a list")
    parts = [dict(checked(part, (dict,), f"{LR}.schedulers", "a list of groups")) for part in listed]
    lengths = numbers(node.get("lengths"), f"{LR}.lengths", len(parts))
    scalings = checked(node.get("interval_scaling", []), (list,), f"{LR}.interval_scaling", "a list of words")
    modes = [*(str(mode) for mode in scalings), *["rescaled"] * len(parts)][: len(parts)]
    if scaling is not None:
        for part in parts:
            if part.get("name") == "linear":
                part |= {"start_value": scaling.start(batch), "end_value": scaling.peak(batch)}
        if batch.nodes == 1 and parts and parts[0].get("name") == "linear":
            rest = _single(parts[1], scaling.peak(batch)) if len(parts) == 2 else None
            if rest is not None:
                note = "on one node VISSL drops the warm-up, which raysl would keep; so there is none here"
                return Course(rest.peak, rest.settings, (*rest.notes, note))
    peak = None if scaling is None else scaling.peak(batch)
    if len(parts) == 2 and parts[0].get("name") == "linear" and parts[1].get("name") in ("cosine", "multistep"):
        return _after_warmup(parts, lengths, modes, epochs, peak)
    return _phases(parts, lengths, modes, peak)


def _after_warmup(
    parts: list[dict[str, Any]], lengths: list[float], modes: list[str], epochs: int, scaled: float | None
) -> Course:
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


def _phases(parts: list[dict[str, Any]], lengths: list[float], modes: list[str], scaled: float | None) -> Course:
    """Parts as `optim.phases`, of lines, cosines and constants."""
    ends = []
    for part in parts:
        if part.get("name") not in ("linear", "cosine", "constant"):
            raise ConfigError(
                f"{LR}.schedulers: no counterpart of {part.get('name')!r} among several; give optim.phases yourself"
            )
        start = _value(part, "value" if part["name"] == "constant" else "start_value")
        ends.append((start, start if part["name"] == "constant" else _value(part, "end_value")))
    if scaled is not None:
        ends = [
            # `_composite` has scaled the ends of lines already; cosines and constants begin at the scaled peak
            (start, end) if part["name"] == "linear" else (scaled, scaled * _share(end, start))
            for part, (start, end) in zip(parts, ends, strict=True)
        ]
    peak = max(value for pair in ends for value in pair)
    phases = []
    for part, pair, length, mode in zip(parts, ends, lengths, modes, strict=False):
        phase = {"shape": part["name"], "length": _percent(length), "start": _share(pair[0], peak)}
        if part["name"] != "constant":
            phase |= {"end": _share(pair[1], peak), "over": "run" if mode == "fixed" else "phase"}
        phases.append(phase)
    return Course(peak, {"optim.phases": phases})


def _value(node: dict[str, Any], key: str) -> float:
    return float(checked(node.get(key), (int, float), f"{LR}.{key}", "a number"))


def _share(value: float, of: float) -> float:
    return _round(value / of) if of else 0.0


def _round(share: float) -> float:
    return round(share, DIGITS)


def _percent(share: float) -> str:
    return f"{100 * share:.8g}%"
