"""Commands of raysl that pages, docstrings, messages and configurations name exist, with their options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from raysl.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
CODE = [path for room in ("raysl", "jobs", "perf") for path in (ROOT / room).rglob("*.py")]
SETTINGS = [ROOT / "cluster.yaml", *(ROOT / "configs").rglob("*.yaml")]
HEAD = re.compile(r"^# Command: raysl (.+)$", re.MULTILINE)
QUOTED = re.compile(r"`(?:uv run )?raysl ([^`]+)`")


def texts_of(path: Path) -> Iterator[str]:
    """The prose of a page, the strings of a program, or the comments of settings, each on one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield " ".join(node.value.split())
            elif isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values]
                yield " ".join("".join(parts).split())
    elif path.suffix == ".yaml":
        yield " ".join(re.sub(r"^# ?", "", text, flags=re.MULTILINE).split())
    else:
        yield " ".join(re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL).split())


def commands_in(path: Path) -> set[str]:
    """What stands behind `raysl` where a file names a command."""
    heads = HEAD.findall(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else []
    return {*heads, *(command for text in texts_of(path) for command in QUOTED.findall(text))}


def problem(words: str) -> str | None:
    """Why there is no such command, or None."""
    command, rest = typer.main.get_command(app), words.split()
    # a name in capitals stands for any command
    while hasattr(command, "commands") and rest and re.match("[a-z]", rest[0]):
        if rest[0] not in command.commands:
            return f"raysl {words}: no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    if hasattr(command, "commands") and rest and rest[0].isupper():
        return None
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    options = [word.partition("=")[0].rstrip(",.;)") for word in rest if re.match(r"--?[a-z]", word)]
    unknown = [option for option in options if option not in known | {"--help", "-h"}]
    return f"raysl {words}: no option {unknown[0]}" if unknown else None


@pytest.mark.thorough
@pytest.mark.parametrize("paths", [PAGES, CODE, SETTINGS], ids=["pages", "code", "settings"])
def test_every_command_that_is_named_exists(paths: list[Path]) -> None:
    named = {path: commands_in(path) for path in paths}
    assert sum(map(len, named.values())) > 20
    problems = [(path.name, problem(words)) for path, commands in named.items() for words in sorted(commands)]
    assert [(name, said) for name, said in problems if said] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("preview runs/mine", "no command 'preview'"),
        ("report show runs/mine", "no command 'show'"),
        ("pretrain simclr --epochs 3", "no option --epochs"),
    ],
)
def test_a_command_that_does_not_exist_is_found(words: str, said: str) -> None:
    assert said in (problem(words) or "")
