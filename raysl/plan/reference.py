"""Settings for a reference number of workers, scaled to another one, as Detectron2's `auto_scale_workers` does."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.course import peak_lr
from raysl.process.screen import counted
from raysl.schedule import Duration

_STAYS = ("train.log_every",)
"""Settings in updates that do not change what is trained."""


def for_workers(config: RunConfig) -> RunConfig:
    """Return settings for `train.workers` from settings for `train.reference_workers`.

    The batch is multiplied by the ratio of the two, so that each worker's share of it stays the same, and lengths in
    updates (`500st`) are divided by it, except `train.log_every`. The peak of the learning rate follows the batch by
    `optim.lr_scaling`; where that is none, `optim.lr` and `optim.head_lr` are multiplied by the ratio. The result is
    for its own number of workers, so that scaling it again changes nothing.

    Raises:
        ConfigError: if the reference workers do not share the batch evenly.
    """
    train = config.train
    if train.reference_workers is None or train.reference_workers == train.most_workers:
        return config
    if train.batch_size % train.reference_workers:
        low = train.batch_size // train.reference_workers * train.reference_workers
        ways = f"{low} or {low + train.reference_workers}" if low else f"{train.reference_workers}"
        raise ConfigError(
            f"train.batch_size={train.batch_size} is not shared evenly by train.reference_workers="
            f"{train.reference_workers}, so {counted(train.most_workers, 'worker')} get no whole batch like it; set "
            f"train.batch_size={ways}, or leave reference_workers out"
        )
    # exact, since the rounding of a float could move a length by one update
    ratio = Fraction(train.most_workers, train.reference_workers)
    parts = {name: _divide_updates(getattr(config, name), ratio, name) for name in ("method", "optim", "train")}
    # other rules compute the rate from the batch, which is scaled below
    if config.optim.lr_scaling == "none":
        head = parts["optim"].head_lr
        parts["optim"] = dataclasses.replace(
            parts["optim"], lr=config.optim.lr * float(ratio), head_lr=None if head is None else head * float(ratio)
        )
    parts["train"] = dataclasses.replace(
        parts["train"],
        batch_size=train.batch_size // train.reference_workers * train.most_workers,
        reference_workers=train.most_workers,
    )
    return dataclasses.replace(config, **parts)


def describe_scaling(config: RunConfig) -> str | None:
    """Return what `for_workers` changes as a sentence, or None where it changes nothing."""
    scaled = for_workers(config)
    if scaled is config:
        return None
    old, new = config.train, scaled.train
    changes = [f"train.batch_size {old.batch_size} -> {new.batch_size}"]
    lrs = [peak_lr(side.optim, side.train.batch_size) for side in (config, scaled)]
    changes.append(f"peak learning rate {lrs[0]:.4g} -> {lrs[1]:.4g} (optim.lr_scaling={config.optim.lr_scaling})")
    before = dict(_find_updates(config, ""))
    after = dict(_find_updates(scaled, ""))
    changes += [f"{key} {value} -> {after[key]}" for key, value in before.items() if value != after[key]]
    return f"train.workers={old.workers} for train.reference_workers={old.reference_workers}: {', '.join(changes)}"


def _divide_updates(value: Any, ratio: Fraction, key: str) -> Any:
    """Divide the lengths in updates of a setting or a group by the ratio; each stays at least 1."""
    if isinstance(value, Duration):
        if value.unit != "st" or value.value == 0 or key in _STAYS:
            return value
        # halves go up, where round() would take the even neighbour
        return Duration(float(max(1, math.floor(Fraction(value.value) / ratio + Fraction(1, 2)))), "st")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        new = {name: _divide_updates(item, ratio, f"{key}.{name}") for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        items = tuple(_divide_updates(item, ratio, key) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def _find_updates(value: Any, key: str) -> list[tuple[str, Duration]]:
    """Return all lengths in updates below a key."""
    if isinstance(value, Duration):
        return [(key, value)] if value.unit == "st" else []
    if dataclasses.is_dataclass(value):
        prefix = f"{key}." if key else ""
        named = [(f"{prefix}{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple):
        named = [(f"{key}[{number}]", item) for number, item in enumerate(value)]
    else:
        return []
    return [update for inner, item in named for update in _find_updates(item, inner)]
