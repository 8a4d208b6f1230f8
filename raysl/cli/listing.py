"""`raysl config` and `raysl list`: the settings, and the names that they can have."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from raysl.cli.arguments import Arguments, load_run, refuse_stray, show_json, sort_arguments
from raysl.cli.locate import is_sweep
from raysl.components import ALIASES, nearest, resolve
from raysl.errors import ConfigError

Row = tuple[str, str, str]
"""Name, class or file, first line of the documentation."""


def show_config(arguments: Arguments = None) -> None:
    """Print the resolved settings of a run or a sweep, each with its meaning. The output is a configuration file."""
    from raysl.config.docs import annotate
    from raysl.config.dump import show

    name, overrides, stray = sort_arguments(arguments or [])
    if name is None or not is_sweep(name):
        typer.echo(annotate(load_run(arguments, low_resource=False, command="config")), nl=False)
        return
    from raysl.sweeps.load import load_sweep
    from raysl.sweeps.ray_tune import scheduler_of, searcher_of
    from raysl.sweeps.space import Space

    refuse_stray(stray)
    sweep, rest = load_sweep(name, overrides)
    base = load_run([sweep.first_config, *sweep.settings, *rest], low_resource=False, command="config")
    typer.echo(annotate(sweep), nl=False)
    if rest:
        typer.echo(f"# beside them, of its runs: {' '.join(rest)}")
    space = Space.of(sweep.space)
    configs = {"config": {"grid": sweep.configs}} if sweep.configs else {}
    varied = {key: {distribution.kind: distribution.values} for key, distribution in space.distributions.items()}
    arguments_of_tune = {
        "param_space": show(configs | varied),
        "num_samples": sweep.trials if space.is_random else 1,
        "search_alg": searcher_of(sweep, base.seed if sweep.seed is None else sweep.seed),
        "scheduler": scheduler_of(sweep, base.train.epochs),
        "max_failures": sweep.retries,
    }
    typer.echo("# Ray Tune gets")
    for key, value in arguments_of_tune.items():
        typer.echo(f"#   {key}: {value}")


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help="methods, backbones, sources, transforms, benchmarks, callbacks, optimizers, configs or weights; "
            "default: these kinds.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON list of objects; of backbones with the cost of well-known shapes."),
    ] = False,
) -> None:
    """List the names that a setting can have, each with its class and a description."""
    if kind is None:
        if as_json:
            show_json([*_KINDS])
        else:
            typer.echo("\n".join(f"raysl list {name}" for name in _KINDS))
        return
    if kind not in _KINDS:
        near = _OTHER_WORDS.get(kind) or [name for name in [nearest(kind, _KINDS)] if name]
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ConfigError(f"no list {kind!r}; {hint}Known: {', '.join(_KINDS)}")
    if as_json:
        show_json(_describe(kind))
        return
    rows = sorted(_KINDS[kind]())
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, where, doc in rows:
        typer.echo(f"{name:<{widths[0]}}  {where:<{widths[1]}}  {doc}".rstrip())


def _describe(kind: str) -> list[dict[str, Any]]:
    """Return the rows as objects with `name`, `class` and `doc`; backbones also have `shapes` with their cost."""
    rows: list[dict[str, Any]] = [
        {"name": name, "class": where, "doc": doc} for name, where, doc in sorted(_KINDS[kind]())
    ]
    if kind == "backbones":
        from raysl.nn.backbones.shapes import measure_shapes

        for row in rows:
            row["shapes"] = measure_shapes(row["name"])
    return rows


def _components(slot: str) -> list[Row]:
    return [(name, target, _summary(slot, name)) for name, target in ALIASES[slot].items()]


def _summary(slot: str, name: str) -> str:
    try:
        return _first_line(resolve(slot, name))
    except ConfigError as error:
        return f"(not available: {error})"


def _first_line(kind: object) -> str:
    return next(iter((inspect.getdoc(kind) or "").splitlines()), "")


def _transforms() -> list[Row]:
    import raysl.transforms as transforms

    classes = {name: kind for name, kind in inspect.getmembers(transforms, inspect.isclass) if not name.startswith("_")}
    return [(name, f"{kind.__module__}:{kind.__qualname__}", _first_line(kind)) for name, kind in classes.items()]


def _configs() -> list[Row]:
    from raysl.config.config_files import config_names, packaged_folder, read_summary

    paths = {name: packaged_folder() / f"{name}.yaml" for name in config_names()}
    return [(name, str(path), read_summary(path)) for name, path in paths.items()]


def _weights() -> list[Row]:
    from raysl.trained import FOLDER, read_title, trained_names

    return [(name, str(FOLDER / name / "README.md"), read_title(name)) for name in trained_names()]


_KINDS: dict[str, Callable[[], list[Row]]] = {
    "methods": lambda: _components("method"),
    "backbones": lambda: _components("backbone"),
    "sources": lambda: _components("source"),
    "transforms": _transforms,
    "benchmarks": lambda: _components("benchmark"),
    "callbacks": lambda: _components("callback"),
    "optimizers": lambda: _components("optimizer"),
    "configs": _configs,
    "weights": _weights,
}
_OTHER_WORDS = {
    "models": ("methods", "backbones", "weights"),
    "checkpoints": ("weights",),
    "pretrained": ("weights",),
    "networks": ("backbones",),
    "architectures": ("backbones",),
    "datasets": ("sources",),
    "data": ("sources",),
    "augmentations": ("transforms",),
    "recipes": ("configs",),
}
