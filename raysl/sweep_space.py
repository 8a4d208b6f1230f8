"""What a sweep searches: a YAML file of its own, with a distribution for each setting that varies, and with the
configurations that trials start from."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from raysl.arguments import text_or_path, words
from raysl.config.dump import show, write
from raysl.config.files import config_names, find, read, read_file
from raysl.config.load import load_config
from raysl.config.ranges import Count, Within
from raysl.config.schema import RunConfig
from raysl.config.values import convert
from raysl.errors import ConfigError
from raysl.redact import redact_tree

DISTRIBUTIONS = ("choice", "grid", "uniform", "loguniform", "randint")


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A search over the settings of a run."""

    config: str = "quickstart"
    """Configuration that the trials depart from: a packaged name or a .yaml file."""
    configs: list[str] = field(default_factory=list)
    """Configurations that trials depart from instead, each with all that varies: packaged names, .yaml files, patterns
    such as digits/*; what follows a ! is taken out again."""
    settings: list[str] = field(default_factory=list)
    """Settings laid over each of `configs`, as on the command line: train.epochs=60."""
    trials: Annotated[int, Within(1, 100_000)] = 8
    """Trials to draw of what varies; every grid value and every one of `configs` is tried in each of them."""
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


def load_starts(
    sweep: SweepConfig, overrides: Sequence[str] = (), load: Callable[[list[str]], RunConfig] | None = None
) -> dict[str, RunConfig]:
    """The settings of each of a sweep's `configs`, by its name.

    Args:
        sweep: what `load_sweep` gave.
        overrides: settings for all of them, after those of the sweep.
        load: from a name and overrides, in one list, to settings; default: `load_config`.

    Raises:
        ConfigError: if one of them does not load, with a line for each; the name of the configuration is in front.
    """
    load = load or (lambda words: load_config(words[0], words[1:]))
    starts, errors = {}, []
    for name in sweep.configs:
        try:
            starts[name] = load([name, *sweep.settings, *overrides])
        except ConfigError as error:
            errors += [f"{name}: {line}" for line in str(error).splitlines()]
    if errors:
        raise ConfigError("\n".join(errors))
    return starts


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
    sweep = dataclasses.replace(sweep, configs=_named(sweep.configs, path))
    if not sweep.space and not sweep.configs:
        raise ConfigError(
            f"{path}: space is empty; name a setting and its distribution, optim.lr: {{uniform: [0.1, 1]}}, or several "
            "configs to compare"
        )
    if sweep.settings and not sweep.configs:
        raise ConfigError(f"{path}: settings are laid over configs, and there are none; write them into {sweep.config}")
    if sweep.scheduler == "asha" and "/" in sweep.metric:
        raise ConfigError(
            f"{path}: asha compares trials while they train, and {sweep.metric} is measured afterwards; "
            "rank by knn_top1, or set scheduler=none"
        )
    for key, distribution in sweep.space.items():
        examples(key, distribution)
    return sweep


def _named(patterns: list[str], path: str) -> list[str]:
    """The configurations behind names, files and patterns, each once, in the order in which they are first named."""
    known = [name for name in config_names() if not name.startswith(("data/", "sweep/"))]
    named: list[str] = []
    for pattern in patterns:
        is_out, wanted = pattern.startswith("!"), pattern.removeprefix("!")
        found = [name for name in known if _matches(name, wanted)] or [wanted] * wanted.endswith((".yaml", ".yml"))
        if not found:
            near = difflib.get_close_matches(wanted, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"{path}: configs: no configuration {wanted!r}; {hint}Known: {', '.join(known)}")
        named = [name for name in named if name not in found] if is_out else list(dict.fromkeys([*named, *found]))
    if patterns and not named:
        raise ConfigError(f"{path}: configs: {show(patterns)} leaves no configuration; take out fewer")
    return named


def _matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern, of which a * does not cross a slash."""
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


def _no_node(kind: type[Any], value: Any, key: str, default: Any) -> Any:
    raise TypeError(f"{key}: a sweep has no groups of settings")
