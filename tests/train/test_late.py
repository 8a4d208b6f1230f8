"""Reading the loss one step late, as on a GPU: the right step is named, and nothing bad is saved."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.data.decode.corrupt import CorruptLog
from raysl.train import LocalReporter, NonFiniteLoss, fit, late
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.corrupt_images import CorruptImages
from raysl.train.callbacks.stop import StopRequest
from raysl.train.disk import Disk
from raysl.train.late import Agreement, FiniteCheck, Late
from tests.collective_calls import Collectives
from tests.fake_ranks import fake_ranks
from tests.rank_processes import RunRanks
from tests.train.problem import StopAt, batches, problem, tensors_of


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "is_late", lambda device: True)


def with_nan(made: list[Batch], place: int) -> list[Batch]:
    """The batches, one pixel of one of them lost."""
    made[place].views["global"][0, 0, 0, 0, 0] = math.nan
    return made


def test_numbers_come_back_as_they_were() -> None:
    assert Late(torch.tensor([1.0, math.inf])).read() == [1.0, math.inf]


@pytest.mark.usefixtures("_late")
def test_the_step_that_was_lost_is_named_when_the_next_one_is_under_way() -> None:
    _, plan = problem()
    check = FiniteCheck(torch.device("cpu"))
    check.add(torch.tensor(1.0), plan.step(3))
    check.add(torch.tensor(math.inf), plan.step(4))
    with pytest.raises(NonFiniteLoss, match=r"not finite at step 4 \(here inf\)"):
        check.add(torch.tensor(1.0), plan.step(5))


@pytest.mark.usefixtures("_late")
def test_settling_looks_at_once_and_only_once() -> None:
    _, plan = problem()
    check = FiniteCheck(torch.device("cpu"))
    check.add(torch.tensor(math.nan), plan.step(4))
    with pytest.raises(NonFiniteLoss, match="not finite at step 4"):
        check.settle()
    check.settle()


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize(
    ("lost", "every", "updates"),
    [
        (2, "train.checkpoint_every=100st", 3),  # found during step 3: that of step 2 was made
        (2, "train.checkpoint_every=3st", 3),  # found before the save that follows step 2
        (2, "train.log_every=3st", 3),
        (1, "train.checkpoint_every=1st", 2),
    ],
)
def test_weights_are_bad_by_one_update_and_not_saved(lost: int, every: str, updates: int, tmp_path: Path) -> None:
    state, plan = problem(every)
    lines: list[int] = []

    class Lines(Callback):
        def on_log(self, run: Run, step: object, line: dict[str, float]) -> None:
            lines.append(run.state.step)

    with pytest.raises(NonFiniteLoss, match=f"not finite at step {lost} "):
        fit(
            state,
            state.method,
            plan,
            with_nan(batches(plan), lost),
            callbacks=[Lines()],
            reporter=LocalReporter(tmp_path, keep=9),
        )
    assert state.step == updates
    assert any(not value.isfinite().all() for value in tensors_of(state).values() if value.is_floating_point())
    saved = [int(path.name.removeprefix("checkpoint_")) for path in tmp_path.iterdir()]
    assert all(step <= lost for step in saved)
    assert all(step <= lost for step in lines)
    for path in tmp_path.iterdir():
        state.load(path)
        assert all(value.isfinite().all() for value in tensors_of(state).values() if value.is_floating_point())


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("lost", [3, 7])
def test_a_loss_that_is_lost_at_the_last_step_or_before_a_stop_is_found(lost: int, tmp_path: Path) -> None:
    state, plan = problem("train.epochs=2")
    made = with_nan(batches(plan, num=8), lost)
    with pytest.raises(NonFiniteLoss, match=f"not finite at step {lost} "):
        fit(state, state.method, plan, made, callbacks=[StopAt(lost + 1)], reporter=LocalReporter(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_flags_of_a_step_are_exchanged_once_and_read_one_by_one(run_ranks: RunRanks) -> None:
    for found in run_ranks(2, agreed):
        assert found["read"] == [[0.0], [1.0, 0.0], [1.0]]
        assert found["calls"] == ["allreduce_", "allreduce_"], "the third flag came after the first exchange"


def agreed() -> dict[str, Any]:
    rank, agreement = dist.rank(), Agreement()
    with Collectives() as watch:
        first = agreement.ask(torch.full((1,), float(rank)))
        second = agreement.ask(torch.tensor([1.0, 1.0 - rank]))
        agreement.exchange()
        third = agreement.ask(torch.ones(1))
        agreement.exchange()
        agreement.exchange()
    return {"read": [first.read(), second.read(), third.read()], "calls": watch.names}


@pytest.mark.thorough
def test_a_step_late_the_flags_of_loss_stop_and_broken_images_are_one_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("late", "callbacks.stop", "callbacks.corrupt_images"):
        monkeypatch.setattr(f"raysl.train.{module}.is_late", lambda device: True)
    watch = Collectives()
    by_step: list[list[int]] = []

    class Step(Callback):
        def on_backward(self, run: Run, step: object) -> None:
            by_step.append([call.num_bytes for call in watch.calls if call.name == "allreduce_"])
            watch.calls.clear()

    with fake_ranks(2):
        state, plan = problem("train.sync_bn=false")
        callbacks = [StopRequest(lambda: False), CorruptImages(CorruptLog(), Disk(tmp_path), 9), Step()]
        with watch:
            fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=LocalReporter())
    within = [sizes for place, sizes in enumerate(by_step) if place > 1 and place % plan.epoch_len]
    statistics = within[0][0]
    assert within == [[statistics, 16]] * 5, "the means of running statistics, and four flags of four bytes"
