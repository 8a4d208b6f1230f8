"""What a sweep searches: a YAML file of its own, with a distribution for each setting that varies."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from raysl.arguments import text_or_path, words
from raysl.config.dump import show, write
from raysl.config.files import find, read, read_file
from raysl.config.ranges import Count, Within
from raysl.config.values import convert
from raysl.errors import ConfigError
from raysl.redact import redact_tree

DISTRIBUTIONS = ("choice", "grid", "uniform", "loguniform", "randint")


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A search over the settings of a run."""

    config: str = "quickstart"
    """Configuration that the trials depart from: a packaged name or a .yaml file."""
    trials: Annotated[int, Within(1, 100_000)] = 8
    """Trials to draw; every grid value is tried in each of them."""
    metric: str = "knn_top1"
    """Number that ranks the trials: one logged while training, or with scheduler none also one of a benchmark."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""
    scheduler: Literal["asha", "none"] = "asha"
    """asha (Li et al. 2020, arXiv 1810.05934) stops trials that are behind the others at the same epoch."""
    grace_epochs: Count = 1
    """Epochs that asha lets every trial train."""
    reduction: Annotated[int, Within(2, 1000)] = 3
    """asha lets one in so many trials go on at each rung."""
    concurrent: Annotated[int, Within(1, 10_000)] | None = None
    """Trials at a time; default: as many as the cluster has room for."""
    space: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Dotted setting -> {choice: [..]}, {grid: [..]}, {uniform: [low, high]}, {loguniform: ..} or {randint: ..}."""


def load_sweep(name_or_path: str | Path, overrides: Sequence[str] = ()) -> tuple[SweepConfig, list[str]]:
    """A sweep's file, and those overrides that belong to its runs.

    Args:
        name_or_path: a packaged name (`sweep/quickstart`) or a .yaml file.
        overrides: `trials=4` and the other settings of a sweep; all others are for the runs.

    Raises:
        ConfigError: if the file or a value is wrong.
    """
    name_or_path = text_or_path(name_or_path, "name_or_path", "sweep/quickstart")
    overrides = words(overrides, "overrides", "trials=4")
    path = find(name_or_path, Path.cwd())
    tree = read_file(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is no sweep; write settings such as space: and trials:")
    own = {setting.name for setting in dataclasses.fields(SweepConfig)}
    mine = [override for override in overrides if override.partition("=")[0] in own]
    for override in mine:
        key, _, text = override.partition("=")
        tree[key] = read(text, override)
    return _build(tree, str(path)), [override for override in overrides if override not in mine]


def dump_sweep(sweep: SweepConfig) -> str:
    """The sweep as YAML; credentials are `***`."""
    return write(redact_tree(dataclasses.asdict(sweep)))


def examples(key: str, distribution: dict[str, Any]) -> list[Any]:
    """Values that the distribution can give: all of a list, the ends of a range.

    Raises:
        ConfigError: if it is none of the known ones, or its bounds do not fit it.
    """
    known = f"write one of {{{'}, {'.join(f'{name}: [..]' for name in DISTRIBUTIONS)}}}"
    if len(distribution) != 1 or next(iter(distribution)) not in DISTRIBUTIONS:
        raise ConfigError(f"space.{key}: {show(distribution)} is no distribution; {known}")
    ((name, values),) = distribution.items()
    if not isinstance(values, list) or not values:
        raise ConfigError(f"space.{key}.{name}: {show(values)} is no list of values; {known}")
    if name in ("choice", "grid"):
        return values
    kinds = (int,) if name == "randint" else (int, float)
    is_range = (
        len(values) == 2 and all(type(v) in kinds for v in values) and -math.inf < values[0] < values[1] < math.inf
    )
    if not is_range or (name == "loguniform" and values[0] <= 0):
        rule = {"loguniform": ", both above 0", "randint": ", whole numbers, of which the second is never drawn"}
        raise ConfigError(f"space.{key}.{name}: {show(values)} is no range; write [low, high]{rule.get(name, '')}")
    return [values[0], values[1] - 1] if name == "randint" else [float(value) for value in values]


def _build(tree: dict[str, Any], path: str) -> SweepConfig:
    fields = {setting.name: setting for setting in dataclasses.fields(SweepConfig)}
    unknown = [key for key in tree if key not in fields]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}; a sweep has {', '.join(fields)}")
    values = {key: convert(fields[key].type, value, key, None, _no_node) for key, value in tree.items()}
    sweep = SweepConfig(**values)
    if not sweep.space:
        raise ConfigError(
            f"{path}: space is empty; name a setting and its distribution, optim.lr: {{uniform: [0.1, 1]}}"
        )
    if sweep.scheduler == "asha" and "/" in sweep.metric:
        raise ConfigError(
            f"{path}: asha compares trials while they train, and {sweep.metric} is measured afterwards; "
            "rank by knn_top1, or set scheduler=none"
        )
    for key, distribution in sweep.space.items():
        examples(key, distribution)
    return sweep


def _no_node(kind: type[Any], value: Any, key: str, default: Any) -> Any:
    raise TypeError(f"{key}: a sweep has no groups of settings")
