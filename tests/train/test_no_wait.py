"""A training step reads no number from the device, so that a GPU is never waited for."""

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.build import build_optimizer
from raysl.schedule import Step
from raysl.train import LocalReporter, fit, late
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.stop import StopRequest
from tests.frames import path_in_raysl
from tests.train.problem import batches, problem

READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "numpy", "cpu", "equal"}
WAITING = (
    "aten._local_scalar_dense",
    "aten.nonzero",
    "aten.masked_select",
    "aten.equal",
    "aten._unique",
    "aten.is_non",
)


class _Python(TorchFunctionMode):
    """Notes where Python reads a tensor."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in READS:
            self.reads.append(_caller())
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    """Notes operations whose result has a shape or value that the host has to wait for."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_masked = "aten.index" in str(func) and any(
            torch.is_tensor(part) and part.dtype in (torch.bool, torch.uint8)
            for part in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [])
        )
        if is_masked or str(func).startswith(WAITING):
            self.reads.append(f"{func} in {_caller()}")
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    frames = (frame for frame in inspect.stack()[2:] if path_in_raysl(frame.filename) is not None)
    return next((frame.function for frame in frames), "elsewhere")


class _Count(Callback):
    """Takes what was read since the step before."""

    def __init__(self, reads: list[str]) -> None:
        self.reads = reads
        self.by_step: list[list[str]] = []

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.by_step.append(list(self.reads))
        self.reads.clear()


@pytest.fixture
def reads() -> Iterator[list[str]]:
    found: list[str] = []
    with _Python(found), _Kernels(found):
        yield found


@pytest.mark.thorough
def test_the_watch_sees_what_would_wait(reads: list[str]) -> None:
    x = torch.arange(4.0)
    for read in (x.sum().item, x.tolist, lambda: x[x > 1], lambda: bool(x.sum() > 0), (x > 1).nonzero, x.sum().__int__):
        reads.clear()
        read()
        assert reads


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [("optim=sgd", "train.accumulate=2", "train.clip_grad_value=1.0"), ("optim=lars", "train.clip_grad_over=tensor")],
)
def test_a_step_reads_nothing_but_the_flag_of_the_step_before(
    words: tuple[str, ...], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "is_late", lambda device: True)
    state, plan = problem(*words, "train.clip_grad=1.0", "train.epochs=1", "train.precision=bf16")
    made, count = batches(plan), _Count(reads)
    reads.clear()
    # The line that is shown at an epoch's end reads its loss.
    fit(state, state.method, plan, made, callbacks=[count], reporter=LocalReporter(show_progress=False))
    assert count.by_step[0] == []
    assert count.by_step[1:-1] == [["read"]] * (plan.total_steps - 2)
    assert count.by_step[-1] == ["read", "read", "_average"], "the last step is settled, then logged"
    assert reads[0] == "_check_weights", "and saved"


@pytest.mark.thorough
def test_a_cpu_reads_each_loss_at_once(reads: list[str]) -> None:
    state, plan = problem("train.epochs=1")
    made, count = batches(plan), _Count(reads)
    reads.clear()
    fit(state, state.method, plan, made, callbacks=[count], reporter=LocalReporter())
    assert count.by_step[:-1] == [["read"]] * (plan.total_steps - 1)


@pytest.mark.thorough
def test_agreeing_to_stop_reads_one_step_late(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.train.callbacks.stop.is_late", lambda device: True)
    state, plan = problem()
    run, asked = Run(state, plan), StopRequest(lambda: True)
    asked.was_requested.set()
    seen = []
    for index in range(1, 3):
        reads.clear()
        asked.on_step_end(run, plan.step(index), StepOutput(torch.zeros(())))
        seen.append((list(reads), run.stopped))
    assert seen == [([], None), (["read"], "asked to")]


@pytest.mark.thorough
@pytest.mark.parametrize("optim", ["sgd", "lars"])
def test_an_update_runs_on_a_device_that_holds_no_numbers(optim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has shapes only: it refuses every read, and as a GPU tensors of the CPU. It has no autocast."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    state, _ = problem(f"optim={optim}")
    with torch.device("meta"):
        method = SimCLR(state.setup, ResNet(state.config.backbone))
        batch = Batch({"global": torch.empty(6, 2, 3, 8, 8)}, torch.arange(6), torch.zeros(6, dtype=torch.int64))
    optimizer = build_optimizer(method, state.config.optim)
    out = method(batch, Step(0, 10, 10))
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(method.parameters(), 1.0)
    optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in method.parameters())
