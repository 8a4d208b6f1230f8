"""`python -m tests.fake_gpu.breaks [METHOD ...]`: write into `docs/gpu.md` what torch's compiler makes of a step.

With names only their rows are made.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.methods.method import StepOutput
from raysl.methods.shared.compiled_step import compile_step
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.batches import BatchStream
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.state import TrainState
from tests.marked import write_rows
from tests.methods.properties import METHODS, small

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
MARKS = "<!-- python -m tests.fake_gpu.breaks -->\n", "<!-- end of the table of breaks -->\n"
SETTINGS = ("data.drop_last=true", "train.epochs=2", "train.checkpoint_every=100st")
"""Six steps, each of which is logged, since what is logged is computed in a program of its own."""


@dataclass(frozen=True)
class Traced:
    """What torch's compiler made of the steps of a training.

    Args:
        programs: that it captured in all steps; 1 if the step of the first serves for all.
        operations: in these programs.
        breaks: reasons why a step is more than one program, and how often.
        failure: the error that ended the training, or None.
        losses: of the steps.
    """

    programs: int
    operations: int
    breaks: dict[str, int]
    failure: str | None
    losses: list[float]


class _Losses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.values.append(float(out.loss))


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Have torch compile with another backend while it is open: "eager" and "aot_eager" need no compiler of C++."""
    compile_any: Any = torch.compile
    with mock.patch.object(torch, "compile", lambda function, mode=None: compile_any(function, backend=name)):
        yield


def traced(name: str, *words: str, by: str | None = "eager") -> Traced:
    """Train a method of `configs/digits` for six steps with its step compiled, and count.

    Args:
        name: of the method.
        words: further settings.
        by: backend that gets the programs; None: the step is not compiled.
    """
    run = small(name, *SETTINGS, *words)
    return traced_steps(TrainState.create(run.setup, classes=run.classes), LocalBatches(run.loader), by)


def traced_steps(state: TrainState, stream: BatchStream | Sequence[Batch], by: str | None) -> Traced:
    """Train a state on batches, and count; `by` as in `traced`."""
    from torch._dynamo.utils import counters

    losses, failure = _Losses(), None
    torch._dynamo.reset()
    counters.clear()
    with backend(by or ""):
        if by is not None:
            compile_step(state.method, with_graphs=False)
        try:
            fit(state, state.method, state.setup.plan, stream, callbacks=[losses], reporter=LocalReporter())
        except torch._dynamo.exc.InternalTorchDynamoError as error:
            failure = str(error).strip().splitlines()[0]
    stats, breaks = counters["stats"], counters["graph_break"]
    reasons: Counter[str] = Counter()
    for reason, num in breaks.items():
        reasons[_shortened(reason)] += num
    found = Traced(stats["unique_graphs"], stats["calls_captured"], dict(reasons), failure, losses.values)
    torch._dynamo.reset()
    return found


def _shortened(reason: str) -> str:
    """Return the first line of a reason, without addresses and numbers of its values."""
    first = reason.strip().splitlines()[0]
    return re.sub(r"NotImplementedError.*", "unsigned 64-bit numbers of numpy", first).replace("|", "/")


def row(name: str) -> str:
    """Return the line of a method."""
    found = traced(name)
    print(name, found, flush=True)
    why = "; ".join(found.breaks) + ("" if found.failure is None else ", at which tracing ends")
    return f"| {name} | {sum(found.breaks.values())} | {found.programs} | {found.operations} | {why} |"


if __name__ == "__main__":
    write_rows(PAGE, MARKS, METHODS, sys.argv[1:], row)
