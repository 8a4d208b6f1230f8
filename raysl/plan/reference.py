"""Settings stated for one number of workers, on another: Detectron2's `auto_scale_workers`, on request alone."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.course import peak_lr
from raysl.schedule import Duration

_STAYS = ("train.log_every",)
"""How often is looked at a run, not what it is."""


def for_workers(config: RunConfig) -> RunConfig:
    """The settings of a run on `train.workers`, where they are stated for `train.reference_workers`.

    With the ratio of the two the batch grows, so each worker's part of it stays as it is, and all that is stated in
    updates (`500st`) is divided by it, `train.log_every` apart. The peak of the learning rate follows the batch by
    `optim.lr_scaling`; where that is none, `optim.lr` and `optim.head_lr` grow with the ratio. What comes out is stated
    for its own number of workers, so that doing it again changes nothing.

    Raises:
        ConfigError: if the reference workers do not share the batch evenly.
    """
    train = config.train
    if train.reference_workers is None or train.reference_workers == train.workers:
        return config
    if train.batch_size % train.reference_workers:
        low = train.batch_size // train.reference_workers * train.reference_workers
        ways = f"{low} or {low + train.reference_workers}" if low else f"{train.reference_workers}"
        raise ConfigError(
            f"train.batch_size={train.batch_size} is not shared evenly by train.reference_workers="
            f"{train.reference_workers}, so {train.workers} worker(s) get no whole batch like it; set "
            f"train.batch_size={ways}, or leave reference_workers out"
        )
    ratio = Fraction(train.workers, train.reference_workers)
    parts = {name: _divided(getattr(config, name), ratio, name) for name in ("method", "optim", "train")}
    if config.optim.lr_scaling == "none":
        head = parts["optim"].head_lr
        parts["optim"] = dataclasses.replace(
            parts["optim"], lr=config.optim.lr * float(ratio), head_lr=None if head is None else head * float(ratio)
        )
    parts["train"] = dataclasses.replace(
        parts["train"],
        batch_size=train.batch_size // train.reference_workers * train.workers,
        reference_workers=train.workers,
    )
    return dataclasses.replace(config, **parts)


def told_for_workers(config: RunConfig) -> str | None:
    """What `for_workers` changes of settings, in words; None where it changes nothing.

    Raises:
        ConfigError: as `for_workers`.
    """
    scaled = for_workers(config)
    if scaled is config:
        return None
    old, new = config.train, scaled.train
    changes = [f"train.batch_size {old.batch_size} -> {new.batch_size}"]
    lrs = [peak_lr(side.optim, side.train.batch_size) for side in (config, scaled)]
    changes.append(f"peak learning rate {lrs[0]:.4g} -> {lrs[1]:.4g} (optim.lr_scaling={config.optim.lr_scaling})")
    before = dict(_in_steps(config, ""))
    after = dict(_in_steps(scaled, ""))
    changes += [f"{key} {value} -> {after[key]}" for key, value in before.items() if value != after[key]]
    return f"train.workers={old.workers} for train.reference_workers={old.reference_workers}: {', '.join(changes)}"


def _divided(value: Any, ratio: Fraction, key: str) -> Any:
    """A setting, or a group of them, whose updates are divided by the ratio; at least one stays of any."""
    if isinstance(value, Duration):
        if value.unit != "st" or value.value == 0 or key in _STAYS:
            return value
        return Duration(float(max(1, math.floor(Fraction(value.value) / ratio + Fraction(1, 2)))), "st")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        new = {name: _divided(item, ratio, f"{key}.{name}") for name, item in own.items()}
        changed = {name: item for name, item in new.items() if item is not own[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        items = tuple(_divided(item, ratio, key) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def _in_steps(value: Any, key: str) -> list[tuple[str, Duration]]:
    """Everything that is stated in updates, by its place."""
    if isinstance(value, Duration):
        return [(key, value)] if value.unit == "st" else []
    if dataclasses.is_dataclass(value):
        prefix = f"{key}." if key else ""
        named = [(f"{prefix}{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple):
        named = [(f"{key}[{place}]", item) for place, item in enumerate(value)]
    else:
        return []
    return [found for inner, item in named for found in _in_steps(item, inner)]
