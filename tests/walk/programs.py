"""What the programs of a page's commands would do with their arguments, as far as that shows without doing it."""

import importlib.util
import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raysl.cli import app
from tests.walk.blocks import ROOT

if TYPE_CHECKING:
    from tests.walk.reader import Reader

Program = Callable[["Reader", list[str], list[str], bool], None]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OTHERS = {"datasets", "onnx", "onnxscript", "wandb", "mlflow"}
"""Packages of no extra that a page may have a reader install."""
STAYS_OPEN = {"ray dashboard", "jupyter lab", "mkdocs serve"}
"""Commands that do not return: a line behind one in the same block would be typed into it."""


class Cut(Exception):
    """A command of raysl got as far as its work."""


def check_install(words: list[str]) -> None:
    """Check the arguments of `pip install`: raysl itself comes from its clone, and its extras exist."""
    wanted = [word for word in words if not word.startswith("-")]
    assert wanted, "pip install names nothing"
    for word in wanted:
        name, _, extras = word.rstrip("]").partition("[")
        assert name != "raysl", "raysl is on no index: pip install -e '.[EXTRA]' in its clone"
        assert (name == ".") <= ("-e" in words)
        assert set(filter(None, extras.split(","))) <= (set(EXTRAS) if name == "." else set()), f"no extra {word}"
        known = {re.match(r"[\w-]+", line)[0] for lines in EXTRAS.values() for line in lines}  # type: ignore[index]
        assert name in {".", *known, *OTHERS}, f"{name} is in no extra of pyproject.toml"


def _raysl(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    assert reader.is_installed, "raysl is not installed by now"
    with suppress(Cut):
        app(arguments, prog_name="raysl", standalone_mode=False)


def _python(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    if arguments[:2] == ["-m", "venv"]:
        reader.venvs.add(Path(arguments[2]).absolute())
    elif arguments[:2] == ["-m", "perf"]:
        _perf(arguments[2:])
    elif arguments[:2] == ["-m", "raysl"]:
        _raysl(reader, arguments[2:], environment, is_last)
    elif arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), arguments
    elif arguments[0] == "jobs/speed.py":
        _perf(arguments[1:])
    else:
        assert (Path.cwd() / arguments[0]).exists()
        assert arguments[0].startswith("jobs/")
        _raysl(reader, [Path(arguments[0]).stem, *arguments[1:]], environment, is_last)


def _perf(arguments: list[str]) -> None:
    import typer.main

    from perf.cli import app as perf

    group = typer.main.get_command(perf)
    with group.make_context("perf", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, arguments)  # type: ignore[attr-defined]
        command.make_context(name, rest)


def _ray(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    from ray.scripts.scripts import cli

    command, rest, words = cli, list(arguments), []
    while hasattr(command, "commands"):
        words.append(rest[0])
        command, rest = command.commands[rest[0]], rest[1:]
    told = command.make_context(words[-1], list(rest)).params
    name = " ".join(words)
    if name == "get-auth-token":
        reader.has_token |= bool(told["generate"])
    elif name in ("up", "down", "dashboard"):
        assert Path(told["cluster_config_file"]).exists()
        assert reader.has_token, "the token of the cluster was not made by now: ray get-auth-token --generate"
    elif name == "job submit":
        assert reader.page != "README.md" or reader.has_token
        assert "RAY_AUTH_MODE=token" in environment
        reader.command(rest[rest.index("--") + 1 :])


def _pip(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    assert arguments[0] == "install"
    check_install(arguments[1:])
    if "-e" in arguments:
        assert Path("pyproject.toml").exists(), "pip install -e . outside of the clone"
        reader.is_installed = True


def _source(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    script = Path(arguments[0]).absolute()
    assert script.name == "activate"
    assert script.parents[1] in reader.venvs


def _git(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    assert arguments[:2] == ["worktree", "add"]


def _cd(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    import os

    os.chdir(arguments[0])


def _export(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    assert [word for word in arguments if not re.match(r"[A-Z_]+=", word)] == []


def _other(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    """A program of the cloud: the files of raysl that it is given exist."""
    files = [word for word in arguments if re.match(r"(configs|jobs|cluster)[\w./-]*\.?\w+$", word)]
    assert [file for file in files if not Path(file).exists()] == []


def _tool(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
    """A program that comes with an extra."""


def _ends(name: str, program: Program) -> Program:
    def run(reader: "Reader", arguments: list[str], environment: list[str], is_last: bool) -> None:
        stays = {f"{name} {word}" for word in arguments[:1]} & STAYS_OPEN
        assert not stays or is_last, f"{stays} does not return, and lines follow it in its block"
        program(reader, arguments, environment, is_last)

    return run


PROGRAMS: dict[str, Program] = {
    name: _ends(name, program)
    for name, program in {
        "raysl": _raysl,
        "python": _python,
        "python3": _python,
        "ray": _ray,
        "pip": _pip,
        ".": _source,
        "git": _git,
        "cd": _cd,
        "export": _export,
        **dict.fromkeys(("aws", "docker", "kubectl", "gcloud", "chmod"), _other),
        **dict.fromkeys(("pytest", "pre-commit", "mkdocs", "jupyter", "tensorboard", "tail"), _tool),
    }.items()
}
"""By the name that begins the command."""
