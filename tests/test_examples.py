"""The `>>>` examples in docstrings are true, in a folder with the runs `runs/mine` and `runs/other`."""

import doctest
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.plan.setup import Setup
from raysl.train.state import TrainState

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "raysl").rglob("*.py")) if ">>> " in path.read_text()]
PROCESSES = {"pretraining", "train/process", "data/ingest/on_ray"} | {
    f"benchmarks/{name}" for name in ("features/extract", "suite/evaluate", "suite/several")
}
"""Modules whose examples start Ray, or ask the system what the processor is."""
PARAMETERS = [
    pytest.param(path, id=name, marks=[pytest.mark.cluster] if name in PROCESSES else [])
    for path in FILES
    for name in [path.relative_to(ROOT / "raysl").with_suffix("").as_posix()]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name in ("mine", "other"):
        config = load_config("quickstart", [f"name={name}", "backbone.depth=10", "backbone.width=4"])
        TrainState.create(Setup.of(config, 1442, 10)).save(folder / "runs" / name / checkpoint_name(0), {})
        (folder / "runs" / name / "metrics.jsonl").write_text('{"step": 1, "loss": 4.5}\n')
    return folder


@pytest.fixture
def log() -> Iterator[None]:
    """What an example does to raysl's log is undone."""
    log = logging.getLogger("raysl")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = handlers, level, propagate


@pytest.mark.parametrize("path", PARAMETERS)
@pytest.mark.usefixtures("log")
def test_examples_in_docstrings_are_true(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(folder)
    if request.node.get_closest_marker("cluster"):
        request.getfixturevalue("shared_ray")
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    # The finder skips what it does not take for a function or a class: no example may be left out.
    assert sum(len(test.examples) for test in tests) == path.read_text().count(">>> ")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    messages: list[str] = []
    for test in tests:
        runner.run(test, out=messages.append)
    assert not messages, "".join(messages)
