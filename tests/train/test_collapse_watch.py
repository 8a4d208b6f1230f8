"""A collapse, and a number that is none, are named once, with the usual remedies."""

import json
import math
from pathlib import Path

import pytest
import torch

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.methods.simclr import SimCLR
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Run
from raysl.train.callbacks.watch import CollapseWatch
from raysl.train.disk import Disk
from tests.small_copy import SmallCopy
from tests.train.problem import batches, problem

EVERY = 10  # steps between lines


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(*problem("train.epochs=1000"))


def watch(
    run: Run, folder: Path, spreads: list[float], callback: CollapseWatch | None = None, first: int = 0
) -> list[str]:
    """The events of a run that logs these spreads."""
    callback = callback or CollapseWatch(Disk(folder))
    for number, spread in enumerate(spreads, first):
        callback.on_log(run, run.plan.step(EVERY * number), {"loss": 1.0, "embedding_std": spread})
    return events(folder)


def events(folder: Path) -> list[str]:
    file = folder / "events.jsonl"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


def test_a_collapse_of_a_hundred_steps_is_told_of_once_with_the_remedies(run: Run, tmp_path: Path) -> None:
    low = [0.8, 0.5, *[7e-4] * 10]
    assert watch(run, tmp_path, low) == [], "90 steps are not enough"
    (event,) = watch(run, tmp_path / "more", [*low, *[7e-4] * 30])
    assert event.startswith("the embeddings have collapsed: embedding_std was 0.8 at the start")
    assert "since step 20 (now 0.0007)" in event
    assert "optim.lr" in event
    assert "the teacher's momentum" in event
    assert event.endswith("the temperatures)"), "no recipe small/simclr"


def test_a_spread_that_comes_back_or_is_small_but_not_tiny_is_no_collapse(run: Run, tmp_path: Path) -> None:
    assert watch(run, tmp_path, [0.8, *[7e-4] * 9, 0.1, *[7e-4] * 9, *[0.01] * 40]) == []
    assert watch(run, tmp_path, [1e-5] * 40) == [], "it is compared with its own start"


def test_lines_far_apart_count_by_their_steps(run: Run, tmp_path: Path) -> None:
    callback = CollapseWatch(Disk(tmp_path))
    for index, spread in ((1, 0.8), (200, 1e-6), (299, 1e-6)):
        callback.on_log(run, run.plan.step(index), {"embedding_std": spread})
    assert events(tmp_path) == []
    callback.on_log(run, run.plan.step(300), {"embedding_std": 1e-6})
    assert len(events(tmp_path)) == 1


def test_a_resumed_run_remembers_its_start_and_what_was_told(run: Run, tmp_path: Path) -> None:
    first = CollapseWatch(Disk(tmp_path))
    watch(run, tmp_path, [0.8, *[1e-5] * 6], first)
    second = CollapseWatch(Disk(tmp_path))
    second.load_state_dict(first.state_dict())
    assert len(watch(run, tmp_path, [1e-5] * 6, second, first=7)) == 1
    third = CollapseWatch(Disk(tmp_path))
    third.load_state_dict(second.state_dict())
    assert len(watch(run, tmp_path, [1e-5] * 20, third, first=13)) == 1


def test_a_number_that_is_none_is_named_once_and_does_not_hide_a_collapse(run: Run, tmp_path: Path) -> None:
    (event,) = watch(run, tmp_path, [0.8, math.nan, math.inf, 0.8])
    assert event.startswith("at step 10 embedding_std is nan, though the loss is finite; the usual remedies are")
    assert "train.clip_grad" in event
    assert len(watch(run, tmp_path / "more", [0.8, math.nan, *[1e-5] * 11])) == 2


def test_only_the_main_rank_tells(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_main", lambda: False)
    assert watch(run, tmp_path, [0.8, *[1e-5] * 20]) == []


@pytest.mark.thorough
def test_equal_scores_are_told_of_with_the_small_recipe(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.state, "method", SmallCopy.of("small/dino_v2").method)
    most = math.log(512)

    def told(folder: str, shares: list[float]) -> list[str]:
        callback = CollapseWatch(Disk(tmp_path / folder))
        for number, share in enumerate(shares):
            step = Step(index=EVERY * number, total=5000, epoch_len=100)
            callback.on_log(run, step, {"teacher_entropy": share * most, "embedding_std": 0.5})
        return events(tmp_path / folder)

    assert told("a tenth of the run is not over", [0.8, *[1.0] * 50]) == []
    assert told("it comes back", [0.8, *[1.0] * 45, 0.9, *[1.0] * 45]) == []
    assert told("as balanced scores of a healthy run", [0.8, *[0.99] * 80]) == []
    (event,) = told("uniform", [0.8, *[1.0] * 80])
    assert event.startswith("the teacher gives all images nearly the same scores")
    assert "teacher_entropy has been 99.9% or more of 6.24 since step 10 (now 6.24)" in event
    assert event.endswith("small/dino_v2 is the recipe for small batches and few images")


@pytest.mark.thorough
def test_equal_scores_of_a_short_run_count_after_two_hundred_steps(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.state, "method", SmallCopy.of("small/dino").method)
    callback = CollapseWatch(Disk(tmp_path))
    for index, kl in ((50, 0.5), (100, 0.09), (200, 0.02), (299, 0.05)):
        callback.on_log(run, Step(index=index, total=400, epoch_len=20), {"teacher_entropy": 11.0, "kl": kl})
    assert events(tmp_path) == []
    callback.on_log(run, Step(index=300, total=400, epoch_len=20), {"teacher_entropy": 11.0, "kl": 0.03})
    (event,) = events(tmp_path)
    assert "kl has been below 0.1 since step 100 (now 0.03)" in event


class _Collapsed(SimCLR):
    """Its embeddings are all alike from the second step on."""

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        out = super().training_step(batch, step)
        if step.index > 0:
            out.metrics["embedding_std"] = torch.zeros(())
        return out


@pytest.mark.thorough
def test_the_loop_gives_it_what_it_looks_at(tmp_path: Path) -> None:
    state, plan = problem("train.log_every=1st", "train.epochs=30")
    state.method.__class__ = _Collapsed
    fit(state, state.method, plan, batches(plan), callbacks=[CollapseWatch(Disk(tmp_path))], reporter=LocalReporter())
    (event,) = events(tmp_path)
    assert "since step 2 (now 0)" in event
