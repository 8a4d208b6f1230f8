"""`raysl config` and `raysl list`: what can be set and named."""

import difflib
import json
from typing import Annotated

import typer

from raysl.cli.arguments import DEFAULT_CONFIG, Arguments, split_arguments
from raysl.errors import ConfigError


def show_config(arguments: Arguments = None) -> None:
    """Print the resolved settings, each with its meaning. The output is itself a configuration file."""
    from raysl.config.docs import annotate
    from raysl.config.load import load_config

    name, overrides = split_arguments(arguments or [])
    typer.echo(annotate(load_config(name or DEFAULT_CONFIG, overrides)), nl=False)


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, backbones, sources, transforms, benchmarks, callbacks, optimizers or configs.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON list of objects; of backbones with the cost of well-known shapes."),
    ] = False,
) -> None:
    """List what a setting can name, with its class and what it is."""
    from raysl.cli.listing import KINDS, described, names_of

    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no list {kind!r}; {hint}Known: {', '.join(KINDS)}")
    if as_json:
        typer.echo(json.dumps(described(kind), indent=2))
        return
    rows = names_of(kind)
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, where, doc in rows:
        typer.echo(f"{name:<{widths[0]}}  {where:<{widths[1]}}  {doc}".rstrip())
