"""Trainings of detection and segmentation in this process."""

import pytest

from tests.benchmarks.trainings import train_here


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that trainings began at, which run without Ray."""
    steps: list[int] = []
    monkeypatch.setattr("raysl.runs.run.train", train_here(steps))
    return steps
