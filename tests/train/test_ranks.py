"""Runs on several ranks: what a save, a new start and a lost loss do."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train import LocalReporter, NonFiniteLoss, TrainPlan, fit, late
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.state import TrainState
from tests.rank_processes import RunRanks
from tests.train.problem import StopAt, batches, differing, problem, running_statistics, tensors_of


class _Statistics(Callback):
    """Takes the running statistics after each update."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.found.append(torch.cat([value.flatten() for value in running_statistics(run.state.method)]).clone())


def train(state: TrainState, plan: TrainPlan, folder: Path, *callbacks: Callback) -> None:
    model = dist.data_parallel(state.method)
    fit(state, model, plan, batches(plan), callbacks=callbacks, reporter=LocalReporter(folder, keep=9))


def runs(folder: str, *overrides: str) -> dict[str, Any]:
    """A run that nothing disturbs, one that saves all the time, and one that stops and goes on; what all end in."""
    found: dict[str, Any] = {}
    whole, plan = problem(*overrides)
    watch = _Statistics()
    train(whole, plan, Path(folder, "whole"), watch)
    found["whole"] = tensors_of(whole)
    found["statistics"] = torch.stack(watch.found)
    saving, plan = problem(*overrides, "train.checkpoint_every=1st")
    train(saving, plan, Path(folder, "saving"))
    found["saving"] = tensors_of(saving)
    first, plan = problem(*overrides)
    train(first, plan, Path(folder, "stopped"), StopAt(3))
    assert first.step == 3
    second, plan = problem(*overrides)
    restored = LocalReporter(Path(folder, "stopped")).restore()
    assert restored is not None
    second.load(restored)
    train(second, plan, Path(folder, "stopped"))
    found["resumed"] = tensors_of(second)
    return found


def lost_on_one_rank(is_late: bool) -> tuple[str, int]:
    """What this rank is told when the loss of another one is no number, and how many updates were made."""
    late.is_late = lambda device: is_late
    state, plan = problem()
    made = batches(plan)
    if dist.rank() == 1:
        made[2].views["global"][0] = math.nan
    model = dist.data_parallel(state.method)
    with pytest.raises(NonFiniteLoss) as error:
        fit(state, model, plan, made, reporter=LocalReporter())
    return str(error.value).split(" (")[0], state.step


def everything(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {name: runs(f"{folder}/{name}", f"train.sync_bn={name}") for name in ("true", "false")}
    return found | {"lost": [lost_on_one_rank(is_late) for is_late in (False, True)]}


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3], ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest, run_ranks: RunRanks) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(request.param, everything, folder, timeout=180)


@pytest.mark.parametrize("sync_bn", ["true", "false"])
def test_saves_and_new_starts_change_no_bit(ranks: list[dict[str, Any]], sync_bn: str) -> None:
    for rank in ranks:
        for other in ("saving", "resumed"):
            assert differing(rank[sync_bn]["whole"], rank[sync_bn][other]) == [], other


@pytest.mark.parametrize("sync_bn", ["true", "false"])
def test_ranks_are_the_same_after_every_update(ranks: list[dict[str, Any]], sync_bn: str) -> None:
    for rank in ranks:
        assert differing(rank[sync_bn]["whole"], ranks[0][sync_bn]["whole"]) == []
        assert torch.equal(rank[sync_bn]["statistics"], ranks[0][sync_bn]["statistics"])
    assert not torch.equal(ranks[0]["true"]["statistics"], ranks[0]["false"]["statistics"])


def test_all_ranks_stop_together_when_one_loses_its_loss(ranks: list[dict[str, Any]]) -> None:
    told = "the loss is not finite at step 2"
    for rank in ranks:
        assert rank["lost"] == [(told, 2), (told, 3)], "at once, and one step late"
