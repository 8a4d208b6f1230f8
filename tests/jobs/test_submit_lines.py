"""Every `ray job submit` of the README, the docs, the cluster files and the entry scripts, is whole."""

import ast
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

import raysl
from raysl.cli import split_arguments

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8265"
COMMANDS = {"pretrain", "benchmark", "extract", "ingest", "sweep", "speed", "doctor"}


@dataclass(frozen=True)
class Line:
    """A `ray job submit` as a reader would copy it."""

    place: str
    environment: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        """What Python runs: the name of a script or of a command of raysl, and its arguments."""
        script, *arguments = self.words[self.words.index("--") + 2 :]
        return (Path(script).stem, *arguments) if script != "-m" else tuple(arguments[1:])

    @property
    def script(self) -> str:
        return self.command[0]


def _texts() -> dict[str, str]:
    """What may hold such lines, without the marks of comments."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    files = [ROOT / "cluster.yaml", *sorted((ROOT / "configs" / "cluster").glob("*.yaml"))]
    texts = {page.name: page.read_text() for page in pages}
    texts |= {file.name: re.sub("^# ?", "", file.read_text(), flags=re.MULTILINE) for file in files}
    for script in sorted((ROOT / "jobs").glob("*.py")):
        texts[f"jobs/{script.name}"] = ast.get_docstring(ast.parse(script.read_text())) or ""
    return texts


def _lines() -> list[Line]:
    lines = []
    for place, text in _texts().items():
        for command in text.replace("\\\n", " ").splitlines():
            if not re.match(r"\s*(export \S+; )?(\w+=\S+ )*ray job submit ", command):
                assert "ray job submit --" not in command, f"{place} has a line inside of a sentence: {command}"
                continue
            words = shlex.split(command.replace("BUCKET", "bucket"))
            start = words.index("ray")
            exported = re.findall(r"^\s*export (.+)$", text, re.MULTILINE)
            environment = [*words[:start], *(word for line in exported for word in line.split())]
            lines.append(Line(place, tuple(environment), tuple(words[start:])))
    return lines


LINES = _lines()


def test_each_place_that_tells_of_jobs_has_a_line() -> None:
    scripts = {f"jobs/{script.name}" for script in (ROOT / "jobs").glob("*.py")}
    pages = {"README.md", "cluster.md", "sweeps.md"}
    assert {line.place for line in LINES} >= scripts | pages | {"cluster.yaml", "kuberay.yaml"}
    assert {line.script for line in LINES} == COMMANDS


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.place}: {line.script}")
def test_a_line_has_the_token_and_the_time_for_a_last_checkpoint_and_its_settings_exist(line: Line) -> None:
    assert "RAY_AUTH_MODE=token" in line.environment
    options = list(line.words[: line.words.index("--")])
    assert options[options.index("--address") + 1] == ADDRESS
    assert options[options.index("--working-dir") + 1] == "."
    environment = json.loads(options[options.index("--runtime-env-json") + 1])["env_vars"]
    assert float(environment["RAY_JOB_STOP_WAIT_TIME_S"]) >= 30
    if line.script == "pretrain":
        name, overrides = split_arguments(list(line.command[1:]))
        assert raysl.load_config(name or "", overrides).storage.startswith("s3://")
