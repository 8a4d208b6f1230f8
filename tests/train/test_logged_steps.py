"""What only a logged line needs is computed in the steps whose line is logged."""

import pytest
import torch
from torch import Tensor

from raysl.methods.method import StepOutput
from raysl.nn import collapse
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from tests.train.problem import batches, problem


class _Names(Callback):
    """Keeps the names of each step's metrics."""

    def __init__(self) -> None:
        self.by_step: dict[int, set[str]] = {}

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.by_step[step.index] = set(out.metrics)


@pytest.mark.thorough
@pytest.mark.parametrize("words", [(), ("train.accumulate=2",)])
def test_the_spread_of_embeddings_is_measured_in_logged_steps_only(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Tensor] = []
    real = collapse.collapse
    monkeypatch.setattr(collapse, "collapse", lambda z: measured.append(z) or real(z))
    state, plan = problem("train.log_every=3st", *words)
    names = _Names()
    metrics = fit(state, state.method, plan, batches(plan), callbacks=[names], reporter=LocalReporter())
    logged = [step for step, those in names.by_step.items() if set(collapse.COLLAPSE) <= those]
    assert logged == [3, 6, 8], "and the last"
    assert len(measured) == len(logged) * plan.accumulate
    assert set(collapse.COLLAPSE) <= metrics.keys()


def test_outside_of_the_loop_it_is_measured() -> None:
    assert set(collapse.batch_collapse(torch.eye(4))) == set(collapse.COLLAPSE)
    with collapse.logging(False):
        assert collapse.batch_collapse(torch.eye(4)) == {}
