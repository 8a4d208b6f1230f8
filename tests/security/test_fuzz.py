"""Changed files of every kind that raysl reads: an error that names the file, in bounded time and memory."""

import logging
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.fuzz.harness import CORPUS, Target, attempt, fuzz, keep
from tests.security.fuzz.mutate import mutate
from tests.security.fuzz.targets import TARGETS, Seeds

SECONDS = float(os.environ.get("RAYSL_FUZZ_SECONDS", "300"))
"""Of each target; `RAYSL_FUZZ_SECONDS` sets it."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_has_failed_before_does_not(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    target.seeds(tmp_path / "seeds")  # some good files stand beside the changed ones
    found = {}
    for path in sorted((CORPUS / name).glob("*")):
        folder = tmp_path / path.name
        folder.mkdir()
        found[path.name] = attempt(target, path.name.rpartition("-")[0], path.read_bytes(), folder)
    assert {file: failure for file, failure in found.items() if failure} == {}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_good_files_are_read(name: str, tmp_path: Path) -> None:
    seeds: Seeds = TARGETS[name].seeds(tmp_path / "seeds")
    for kind, contents in seeds.items():
        for number, content in enumerate(contents):
            folder = tmp_path / f"{kind} {number}"
            folder.mkdir()
            TARGETS[name].read(kind, content, folder)


@pytest.mark.cluster
def test_a_failure_is_found_and_kept_and_a_process_that_dies_is_one(tmp_path: Path) -> None:
    def read(kind: str, content: bytes, folder: Path) -> None:
        if content[:1] == b"\xff":
            os._exit(7)
        if content[:1] != b"a":
            raise KeyError("a")

    target = Target("fragile", lambda folder: {"text": [b"abcdef" * 3]}, read)
    outcome = fuzz(target, 2.0)
    assert outcome.num > 10
    assert any(failure.startswith("KeyError") for failure in outcome.failures)
    assert "the process ended with 7" in outcome.failures
    kept = keep(target, outcome, tmp_path)
    assert {path.read_bytes()[:1] for path in kept} >= {b"\xff"}


def test_mutations_repeat() -> None:
    content = b'{"a": [1, 2, {"b": null}]}'
    first, second = (
        [mutate(random.Random(seed), content, [content]) for seed in range(200)],
        [mutate(random.Random(seed), content, [content]) for seed in range(200)],
    )
    assert first == second
    assert len(set(first)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_changed_files_fail_by_name(name: str, tmp_path: Path) -> None:
    outcome = fuzz(TARGETS[name], SECONDS, seed=int.from_bytes(os.urandom(4)))
    kept = keep(TARGETS[name], outcome, tmp_path)
    assert outcome.num > 0
    assert not outcome.failures, f"{outcome.num} inputs; kept: {kept}; once mended, copy them to {CORPUS / name}"
