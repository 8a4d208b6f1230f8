"""Read a sweep's file: its settings, and the configurations that its trials depart from."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raysl.checkpoint.backbone import load_checkpoint
from raysl.components import nearest
from raysl.config.arguments import text_or_path, words
from raysl.config.config_files import expand, files_of, find, matching_configs, read_dotlist, read_file
from raysl.config.dump import write
from raysl.config.fields import settings_in, suggest
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.config.values import convert
from raysl.errors import ConfigError, Problems
from raysl.process.screen import warnings_named
from raysl.redact import each_text, redact_tree, redact_uri
from raysl.storage.addresses import absolute
from raysl.sweeps.distributions import parse
from raysl.sweeps.schema import SCHEDULERS, SEARCHERS, SweepConfig, check_name, is_measured, is_population
from raysl.sweeps.space import Space, is_component
from raysl.trained import is_trained
from raysl.user_files import relative_name
from raysl.weights.initial import load_config


def load_sweep(name_or_path: str | Path, overrides: Sequence[str] = ()) -> tuple[SweepConfig, list[str]]:
    """Return the settings of a sweep's file, and the overrides that are for its runs.

    Args:
        name_or_path: packaged name (`sweep/quickstart`) or path of a .yaml file.
        overrides: settings of the sweep, such as `trials=4`; all others, and `seed`, are for the runs.
    """
    name_or_path = text_or_path(name_or_path, "name_or_path", "sweep/quickstart")
    overrides = words(overrides, "overrides", "trials=4")
    path = find(name_or_path, Path.cwd())
    tree = read_file(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not the file of a sweep; write settings such as space: and trials:")
    tree = each_text(tree, partial(relative_name, folder=path.parent, expand=expand))
    tree |= {key: _beside(path.parent, tree[key]) for key in ("config", "configs") if key in tree}
    names = {setting.name for setting in dataclasses.fields(SweepConfig)} - {"seed"}
    of_sweep = [override for override in overrides if override.partition("=")[0] in names]
    for override in of_sweep:
        tree |= read_dotlist(override)
    is_file = name_or_path.endswith((".yaml", ".yml"))
    tree.setdefault("name", path.stem if is_file else name_or_path.replace("/", "-"))
    return from_tree(tree, str(path)), [override for override in overrides if override not in of_sweep]


def _beside(folder: Path, value: Any) -> Any:
    """Return names of configurations; those of files beside the sweep's file, and patterns of them, become absolute."""
    if isinstance(value, list):
        return [_beside(folder, one) for one in value]
    if not isinstance(value, str) or not value.endswith((".yaml", ".yml")):
        return value
    path = folder / expand(value.removeprefix("!"))
    return f"{'!' * value.startswith('!')}{path.resolve()}" if files_of(str(path)) else value


def load_starts(
    sweep: SweepConfig, overrides: Sequence[str] = (), load: Callable[[list[str]], RunConfig] | None = None
) -> dict[str, RunConfig]:
    """Return the settings of each of a sweep's `configs`, by name.

    Args:
        load: function that returns the settings for a list of a name and overrides; default: `load_config`.
    """
    load = load or (lambda arguments: load_config(arguments[0], arguments[1:]))
    starts, problems = {}, Problems()
    for name in sweep.configs:
        with problems.catching(name), warnings_named(name):
            starts[name] = load([name, *sweep.settings, *overrides])
    problems.check()
    return starts


def measured_starts(sweep: SweepConfig, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Return the settings with which a sweep's `checkpoints` were trained, by the URI of each."""
    checkpoints = {name: load_checkpoint(name) for name in sweep.checkpoints}
    uris = [loaded.uri for loaded in checkpoints.values()]
    if twice := [name for name, loaded in checkpoints.items() if uris.count(loaded.uri) > 1]:
        raise ConfigError(f"checkpoints: {', '.join(twice)} are the same checkpoint; give each once")
    starts, problems = {}, Problems()
    for name, loaded in checkpoints.items():
        with problems.catching(redact_uri(name)), warnings_named(redact_uri(name)):
            starts[name] = apply_overrides(loaded.config, overrides)
    problems.check()
    return starts


def dump_sweep(sweep: SweepConfig) -> str:
    """Return a sweep as YAML, with `***` in place of credentials."""
    return write(redact_tree(dataclasses.asdict(sweep)))


def from_tree(tree: Mapping[str, Any], where: str) -> SweepConfig:
    """Check the settings of a sweep and return them.

    Args:
        tree: settings by name; the distributions of `space` may be Ray Tune's.
        where: file that holds the settings, for messages; empty for none.
    """
    prefix = f"{where}: " if where else ""
    fields = {setting.name: setting for setting in dataclasses.fields(SweepConfig)}
    problems = Problems()
    problems.errors += [ConfigError(_unknown(str(key), list(fields))) for key in tree if key not in fields]
    values = {}
    for key in tree:
        if key in fields:
            with problems.catching():
                values[key] = convert(fields[key].type, tree[key], key, None, _no_node)
    sweep = SweepConfig(**values)
    changes: dict[str, Any] = {}
    for key, change in _WRITTEN_OUT.items():
        with problems.catching():
            changes[key] = change(getattr(sweep, key))
    if len(changes) == len(_WRITTEN_OUT):
        sweep = dataclasses.replace(sweep, **changes)
        with problems.catching():
            check(sweep)
    if problems.errors:
        raise ConfigError("\n".join(f"{prefix}{line}" for line in problems.lines))
    return sweep


def _unknown(key: str, known: list[str]) -> str:
    near = nearest(key, known)
    if not near and (of_run := suggest(key, [".".join(keys) for keys, _ in settings_in(RunConfig, {})])):
        hint = f"runs have {' and '.join(of_run)}: write settings: [{of_run[0]}=...], or set it in config; "
    else:
        hint = f"did you mean {near!r}? " if near else ""
    return f"unknown key {key!r}; {hint}a sweep has {', '.join(known)}"


def check(sweep: SweepConfig) -> None:
    """Refuse settings that contradict each other."""
    problems = Problems()
    for check_one in (
        lambda: Space.of(sweep.space),
        lambda: sweep.objectives,
        lambda: check_name("search", sweep.search, SEARCHERS),
        lambda: check_name("scheduler", sweep.scheduler, SCHEDULERS),
    ):
        with problems.catching():
            check_one()
    problems.check()
    lines = [*_problems(sweep), *(_problems_of_population(sweep) if is_population(sweep) else ())]
    if lines:
        raise ConfigError("\n".join(lines))


def _problems(sweep: SweepConfig) -> Iterator[str]:
    """Yield a line for each contradiction between settings."""
    if not sweep.space and not sweep.configs and not sweep.checkpoints and sweep.seeds == 1:
        yield (
            "space is empty; name a setting and its distribution, optim.lr: {uniform: [0.1, 1]}, or several configs or "
            "seeds to compare"
        )
    if sweep.configs and sweep.checkpoints:
        yield "configs are trained and checkpoints are measured; give one of the two"
    if sweep.settings and sweep.checkpoints:
        yield "settings change how runs are trained, and checkpoints are not trained; take one of the two out"
    if sweep.seeds > 1 and "seed" in sweep.space:
        yield f"seed is in the space, and seeds={sweep.seeds} runs each choice with several seeds; keep one of the two"
    rigid = [key for key in sweep.space if not key.startswith("benchmarks.")]
    if sweep.checkpoints and rigid:
        yield (
            f"space.{rigid[0]}: checkpoints have been trained already; only settings of benchmarks may vary, such as "
            "benchmarks.knn.temperature"
        )
    first, early = sweep.objectives[0], sweep.early
    if sweep.scheduler != "none" and is_measured(early.metric):
        yield (
            f"{sweep.scheduler} compares trials while they train, and {early.metric} is known only at their end; set "
            "early_metric=knn_k20_top1, or scheduler=none"
        )
    if sweep.checkpoints and sweep.scheduler != "none":
        yield f"checkpoints are not trained: {sweep.scheduler} has nothing to compare; set scheduler=none"
    if sweep.checkpoints and not is_measured(first.metric):
        yield f"checkpoints are not trained: {first.metric} is not logged; set metric=knn/k20/top1"
    grids = any(drawn.kind == "grid" for drawn in Space.of(sweep.space).distributions.values())
    if sweep.search != "random" and grids:
        yield f"search={sweep.search} draws every value; write choice in place of grid, or search=random"


def _problems_of_population(sweep: SweepConfig) -> Iterator[str]:
    space = Space.of(sweep.space)
    name = sweep.scheduler
    if sweep.search != "random" or sweep.seeds > 1 or sweep.configs or not space.is_random or sweep.trials < 2:
        yield (
            f"{name} needs two trials or more, search=random, seeds=1, no configs and a setting that is drawn; this "
            f"sweep has trials={sweep.trials}, search={sweep.search}, seeds={sweep.seeds}, configs={sweep.configs}"
        )
    conditional = [key for key, distribution in space.distributions.items() if distribution.when or is_component(key)]
    rigid = [key for key in space.distributions if not key.startswith(("optim.", "method."))]
    for key in [*conditional, *rigid][:1]:
        yield (
            f"space.{key}: {name} changes settings of runs that go on from each other's weights; only settings of "
            "optim and method can vary so, and without a condition; take it out, or choose another scheduler"
        )


def _plain_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space as plain values that YAML can hold."""
    plain: dict[str, Any] = {}
    for key, written in space.items():
        distribution = parse(key, written)
        when = {"when": distribution.when} if distribution.when else {}
        plain[key] = {distribution.kind: distribution.values, **when}
    return plain


_WRITTEN_OUT: dict[str, Callable[[Any], Any]] = {
    "configs": matching_configs,
    "checkpoints": lambda uris: [uri if is_trained(uri) else absolute(uri) for uri in uris],
    "space": _plain_space,
}


def _no_node(kind: type[Any], value: Any, key: str, default: Any) -> Any:
    raise TypeError(f"{key}: a sweep has no groups of settings")
