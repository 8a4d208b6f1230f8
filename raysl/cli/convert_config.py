"""`raysl convert-config`: configurations of VISSL as settings of raysl."""

import re
from pathlib import Path
from typing import Annotated

import typer

from raysl.errors import ConfigError
from raysl.redact import redact


def run_convert_config(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [FILE ...] [config.KEY=value ...] [key=value ...]",
            help="A YAML file of VISSL, files and keys of VISSL that are laid over it, and settings of raysl that hold "
            "over the result.",
        ),
    ],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="File to write; default: the screen.")] = None,
) -> None:
    """Translate a configuration of VISSL into one of raysl, and list what differs or has no counterpart.

    The lists are comments at its head. Nothing of the file is run. `raysl plan FILE` then shows what it would do.
    """
    paths = [word for word in arguments if not re.match(r"[^\s=/\\]+=", word)]
    if not paths:
        raise ConfigError("no file is given; write raysl convert-config FILE.yaml, and key=value behind it")
    if out is not None and Path(out).exists():
        raise ConfigError(f"{out!r} is there already; give another name, or delete it")
    from raysl.translation.vissl import convert_config

    translation = convert_config(paths, [word for word in arguments if word not in paths])
    text = redact(translation.text())
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out!r}: {error.strerror}; give another file") from error
    typer.echo("".join(line.removeprefix("# ") for line in text.splitlines(keepends=True) if line.startswith("#")))
    typer.echo(f"config      {redact(out)}")
    typer.echo(f"use         raysl plan {redact(out)}")
