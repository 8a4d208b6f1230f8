"""Arguments that commands share: CONFIG, key=value, and common options."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from raysl.errors import ConfigError, Problems
from raysl.process.environment import JOB_VARIABLE
from raysl.process.screen import only_errors, set_up_logging
from raysl.redact import credential_scheme, redact_uri

if TYPE_CHECKING:
    from raysl.config.schema import RunConfig

DEFAULT_CONFIG = "quickstart"
DEFAULT_SWEEP = "sweep/quickstart"
DEFAULT_STORAGE = "runs"

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [key=value ...]",
        help="Packaged name or .yaml file, then settings such as optim.lr=0.6 (see `raysl config`).",
    ),
]

Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Ray's processes print.")]
LowResource = Annotated[
    bool, typer.Option("--low-resource", help="A quick check: 1 worker, a small batch, 500 images, 2 epochs.")
]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Import code outside raysl that the checkpoint names.")]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="URI", help="A checkpoint, or a run, whose newest one is used.")
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
_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"
_AZURE = "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
_AZURE_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_VARIABLES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _AWS),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("abfs", "abfss"), _AZURE),
    **dict.fromkeys(("az", "adl", "wasb", "wasbs"), _AZURE_ACCOUNT),
    "hf": "HF_TOKEN",
}
"""Environment variables that the file system of a scheme reads."""


def is_setting(word: str) -> bool:
    """Whether a word is key=value.

    >>> is_setting("optim.lr=0.1"), is_setting("runs/a=b")
    (True, False)
    """
    return re.match(r"[^\s=/\\]+=", word) is not None


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split a command's arguments into (CONFIG or None, overrides): the first may be CONFIG, all others are key=value.

    A path or URI of images beside CONFIG becomes `data=PATH`.

    >>> split_arguments(["simclr", "optim.lr=0.1"])
    ('simclr', ['optim.lr=0.1'])
    """
    name, overrides, stray = sort_arguments(arguments)
    refuse_stray(stray)
    return name, overrides


def sort_arguments(arguments: list[str]) -> tuple[str | None, list[str], list[str]]:
    """Return CONFIG or None, overrides, and words that are neither."""
    from raysl.config.places import data_setting, is_place

    overrides = [word for word in arguments if is_setting(word)]
    others = [word for word in arguments if word not in overrides]
    # CONFIG can only be the first word; a name behind a setting is a mistake
    name = others.pop(0) if others and others[0] == arguments[0] else None
    paths = [word for word in others if is_place(word)]
    if name is not None and len(paths) == 1:
        others.remove(paths[0])
        overrides = [data_setting(paths[0]), *overrides]
    return name, overrides, others


def refuse_stray(stray: list[str]) -> None:
    """Refuse words that are neither CONFIG nor a setting."""
    rule = "write settings as key=value, and before them CONFIG and, if you like, one path of images"
    lines = []
    for word in stray:
        missing = "" if os.path.lexists(word) else f"there is no folder or file {word!r}; "
        lines.append(f"{word!r} is neither CONFIG nor a setting; {missing}{rule}")
    if lines:
        raise ConfigError("\n".join(lines))


def load_run(arguments: list[str] | None, low_resource: bool, command: str = "pretrain") -> "RunConfig":
    """Load the settings of a run from a command's arguments."""
    from raysl.cli.locate import find_config
    from raysl.config import load
    from raysl.weights.initial import run_of_weights

    name, overrides, stray = sort_arguments(arguments or [])
    extra = [setting for setting in LOW_RESOURCE if low_resource]
    # errors are collected, so that one try shows all of them
    problems = Problems()
    with problems.catching():
        refuse_stray(stray)
    with problems.catching():
        name, overrides = find_config(name or DEFAULT_CONFIG, overrides, command)
        # what a dropped setting did to views means nothing to images that are only stored
        with only_errors() if command == "ingest" else nullcontext():
            # what trains nothing shows or ignores the weights, and converts none
            convert = None if command in ("config", "ingest") else run_of_weights
            config = load.load_config(name, [*extra, *overrides], convert)
    if problems.errors:
        problems.errors += map(ConfigError, _missing_images(overrides))
    problems.check()
    named = any(override.startswith("name=") for override in overrides)
    return replace(config, name=f"{config.name}-low-resource") if low_resource and not named else config


def _missing_images(overrides: list[str]) -> Iterator[str]:
    """Yield a line for each local path of images with nothing there, which a start would find next."""
    from raysl.config.places import kind_of

    for key, _, text in (word.partition("=") for word in overrides):
        if key in ("data.path", "data.train", "data.test") and text and "$" not in text and kind_of(text) == "nothing":
            yield f"{key}: nothing is at {text!r}"


def show_json(value: object) -> None:
    """Print a value as JSON, which has no NaN and no infinities: these are null."""
    from raysl.report.report_json import plain

    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def set_up(verbose: bool) -> None:
    """Log to the screen; with `verbose`, also what Ray's processes print."""
    set_up_logging()
    if verbose:
        os.environ["RAYSL_VERBOSE"] = "1"


def require_command(context: typer.Context) -> None:
    """Print the help of a command whose sub-command is missing, and end with exit code 2."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def refuse_credentials(arguments: list[str]) -> None:
    """Refuse URIs with a key, password or token among the words of a command: Ray's job list and `ps` show them."""
    seen = "; Ray's job list shows this one already, so replace it with a new one" if JOB_VARIABLE in os.environ else ""
    lines = []
    for word in arguments:
        if (scheme := credential_scheme(word)) is not None:
            advice = "write it as $NAME in a configuration file and export NAME where the command runs"
            if variables := _VARIABLES.get(scheme):
                advice = f"leave it out and set {variables} on each node"
            lines.append(f"{redact_uri(word)!r} holds a credential, and a command line is no secret; {advice}{seen}")
    if lines:
        raise ConfigError("\n".join(lines))
