"""The layer that gave the first NaN is named, with the images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.methods.simclr import SimCLR
from raysl.schedule import Step
from raysl.train import Callback, LocalReporter, NonFiniteLoss, Run, fit, late
from raysl.train.callbacks.non_finite_finder import NonFiniteFinder
from tests.rank_processes import RunRanks
from tests.train.problem import batches, problem

NAN = float("nan")


class Breaks(Callback):
    """Puts NaN into a weight when so many updates are done, on one rank."""

    def __init__(self, name: str, step: int, rank: int = 0) -> None:
        super().__init__()
        self.name, self.step, self.rank = name, step, rank

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.index == self.step and dist.rank() == self.rank:
            run.state.method.get_parameter(self.name).data.view(-1)[0] = NAN


def lost(folder: Path, *callbacks: Callback, method: Any = None, change: Any = None) -> tuple[dict[str, Any], str]:
    """What the finder writes and says of a run that loses its loss."""
    state, plan = problem()
    if method is not None:
        state.method.__class__ = method
    given = batches(plan)
    if change is not None:
        change(given)
    model = dist.data_parallel(state.method)
    with pytest.raises(NonFiniteLoss):
        fit(state, model, plan, given, callbacks=[NonFiniteFinder(), *callbacks], reporter=LocalReporter(folder))
    events = (folder / "events.jsonl").read_text().splitlines() if dist.is_main() else ['{"event": ""}']
    (event,) = [json.loads(line)["event"] for line in events]
    return json.loads((folder / "non_finite.json").read_text()) if dist.is_main() else {}, event


def a_layer() -> tuple[str, str]:
    """A convolution in the middle, and its kind."""
    state, _ = problem()
    found = [(name, type(m).__name__) for name, m in state.method.named_modules() if isinstance(m, torch.nn.Conv2d)]
    return found[2]


@pytest.mark.thorough
@pytest.mark.parametrize("is_late", [False, True])
def test_the_first_bad_layer_is_named_with_its_weights_and_the_images(
    is_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "is_late", lambda device: is_late)
    name, kind = a_layer()
    found, event = lost(tmp_path, Breaks(f"{name}.weight", 3))
    _, plan = problem()
    assert found["step"] == 3
    (rank,) = found["ranks"]
    assert (rank["layer"], rank["kind"], rank["bad_parameters"]) == (name, kind, ["weight"])
    assert rank["index"] == batches(plan)[3].index.tolist()
    assert rank["bad_images"] == []
    assert event.startswith(f"step 3: {name} ({kind}) on worker 0 was the first with an output that is not finite; ")
    assert "an earlier update destroyed its weight; " in event


class _LostLoss(SimCLR):
    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        out = super().training_step(batch, step)
        if step.index == 2:
            out.loss = out.loss / 0
        return out


def test_a_loss_lost_behind_the_layers_is_the_methods_own(tmp_path: Path) -> None:
    found, event = lost(tmp_path, method=_LostLoss)
    assert found["ranks"][0]["layer"] == ""
    assert event.startswith("step 2: _LostLoss itself, after its layers, on worker 0 was the first")


def test_images_that_are_not_finite_are_named(tmp_path: Path) -> None:
    def change(given: list[Batch]) -> None:
        given[1].views["global"][5, 1, 0, 0, 0] = NAN

    found, event = lost(tmp_path, change=change)
    assert found["step"] == 1
    assert found["ranks"][0]["bad_images"] == [5]
    assert "1 images of the batch were not finite;" in event


@pytest.mark.thorough
def test_the_layers_are_left_as_they_were(tmp_path: Path) -> None:
    state, plan = problem()
    fit(state, state.method, plan, batches(plan), callbacks=[NonFiniteFinder()], reporter=LocalReporter(tmp_path))
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in state.method.modules())
    assert not (tmp_path / "non_finite.json").exists()


@pytest.mark.thorough
def test_compiled_blocks_are_compiled_once_and_what_is_around_them_is_named(tmp_path: Path) -> None:
    from torch._dynamo.testing import CompileCounter

    counters = []
    for folder, callbacks in (
        ("plain", ()),
        ("watched", (NonFiniteFinder(), Breaks("backbone.layer1.0.conv1.weight", 6))),
    ):
        state, plan = problem()
        counters.append(CompileCounter())
        state.method.get_submodule("backbone.layer1.0").compile(backend=counters[-1])
        reporter = LocalReporter(tmp_path / folder)
        try:
            fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=reporter)
        except NonFiniteLoss:
            assert folder == "watched"
    assert counters[0].frame_count == counters[1].frame_count
    found = json.loads((tmp_path / "watched" / "non_finite.json").read_text())
    assert found["ranks"][0]["layer"] == "backbone.layer1"


def _on_ranks(folder: str, name: str) -> tuple[dict[str, Any], str]:
    return lost(Path(folder), Breaks(f"{name}.weight", 2, rank=1))


def test_the_worker_that_lost_it_is_named(tmp_path: Path, run_ranks: RunRanks) -> None:
    name, _ = a_layer()
    (found, event), _ = run_ranks(2, _on_ranks, str(tmp_path), name)
    assert "on worker 1 was the first" in event
    assert found["ranks"][1]["layer"] == name
    assert [len(rank["index"]) for rank in found["ranks"]] == [6, 6]
    assert {place for rank in found["ranks"] for place in rank["index"]} == set(range(12))
