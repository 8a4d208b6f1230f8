"""Arguments that commands share: CONFIG, key=value, and common options."""

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from raysl.errors import ConfigError
from raysl.process.screen import set_up_logging

if TYPE_CHECKING:
    from raysl.config.schema import RunConfig

DEFAULT_CONFIG = "quickstart"

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [key=value ...]",
        help="Packaged name or .yaml file, then settings such as optim.lr=0.6 (see `raysl config`).",
        show_default=False,
    ),
]

Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Ray's processes print.")]
LowResource = Annotated[
    bool, typer.Option("--low-resource", help="A quick check: 1 worker, a small batch, 500 images, 2 epochs.")
]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Import code outside raysl that the checkpoint names.")]
Checkpoint = Annotated[
    str, typer.Option(metavar="URI", help="A checkpoint, or a run, whose newest one is used.", show_default=False)
]
LOW_RESOURCE = (
    "train.workers=1",
    "train.reference_workers=null",
    "train.batch_size=32",
    "train.epochs=2",
    "optim.warmup=10%",
    "optim.phases=[]",
    "data.limit=500",
    "data.lanes=null",
)


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split a command's arguments into (CONFIG or None, overrides): the first may be CONFIG, all others are key=value.

    Raises:
        ConfigError: if another argument is not key=value.

    >>> split_arguments(["simclr", "optim.lr=0.1"])
    ('simclr', ['optim.lr=0.1'])
    """
    overrides = [word for word in arguments if re.match(r"[^\s=/\\]+=", word)]
    others = [word for word in arguments if word not in overrides]
    if others and others[0] == arguments[0]:
        name, *others = others
    else:
        name = None
    if others:
        rule = "write settings as key=value, and CONFIG as one word before them"
        raise ConfigError("\n".join(f"{word!r} is neither CONFIG nor a setting; {rule}" for word in others))
    return name, overrides


def load_run(arguments: list[str] | None, low_resource: bool) -> "RunConfig":
    """Load the settings of a run from a command's arguments.

    Raises:
        ConfigError: with a line for each error in them.
    """
    from raysl.config.load import load_config

    name, overrides = split_arguments(arguments or [])
    extra = [setting for setting in LOW_RESOURCE if low_resource]
    config = load_config(name or DEFAULT_CONFIG, [*extra, *overrides])
    named = any(override.startswith("name=") for override in overrides)
    return replace(config, name=f"{config.name}-low-resource") if low_resource and not named else config


def set_up(verbose: bool) -> None:
    """Log to the screen; with `verbose`, also what Ray's processes print."""
    set_up_logging()
    if verbose:
        os.environ["RAYSL_VERBOSE"] = "1"
