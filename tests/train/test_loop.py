"""The loop on lists of tensors, without Ray."""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.methods.simclr import SimCLR
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train import LocalReporter, NonFiniteLoss, TrainPlan, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.logs import MetricsLog, parse_metrics
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.meter import WARM_UP
from raysl.train.state import TrainState
from tests.runs.runs import assert_same

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.md"
IMAGES = (32, 0)  # and classes
SMALL = [
    "backbone.num_stages=1",
    "backbone.width=4",
    "method.hidden_dim=8",
    "method.output_dim=4",
    "train.batch_size=8",
    "train.epochs=3",
    "train.log_every=1st",
    "train.checkpoint_every=5st",
]


def _batches(num: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(8, 2, 3, 8, 8, generator=generator) for _ in range(num)]
    return [Batch({"global": view}, torch.arange(8), torch.zeros(8, dtype=torch.int64)) for view in views]


def _state() -> tuple[TrainState, TrainPlan]:
    config = load_config("quickstart", SMALL)
    return TrainState.create(Setup.of(config, *IMAGES)), TrainPlan.from_config(config, IMAGES[0])


class _StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index == self.step:
            run.stop("the test wants it")


@pytest.mark.cluster
def test_the_notebook_page_runs_as_printed_and_does_not_start_ray(tmp_path: Path) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", NOTEBOOK.read_text(), re.S) if "fit(" in block]
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 10
    check = code + "\nimport sys\nassert 'ray' not in sys.modules\nprint(features.shape, sorted(metrics))"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([8, " in done.stdout
    assert (tmp_path / "runs" / "notebook" / "checkpoint_000000008" / "backbone.safetensors").exists()


@pytest.mark.thorough
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole, plan = _state()
    fit(whole, whole.method, plan, _batches(), reporter=LocalReporter())
    assert whole.step == plan.total_steps == 12

    first, _ = _state()
    fit(first, first.method, plan, _batches(), callbacks=[_StopAt(7)], reporter=LocalReporter(tmp_path))
    assert first.step == 7
    second, _ = _state()
    restored = LocalReporter(tmp_path).restore()
    assert restored is not None
    second.load(restored)
    fit(second, second.method, plan, _batches(), reporter=LocalReporter(tmp_path))

    assert_same(whole.method.state_dict(), second.method.state_dict())
    assert_same(whole.optimizer.state_dict(), second.optimizer.state_dict())


def test_a_state_is_saved_to_and_loaded_from_a_path_or_its_text(tmp_path: Path) -> None:
    first, second = _state()[0], _state()[0]
    first.step = 3
    first.save(str(tmp_path / "checkpoint"), {})
    second.load(str(tmp_path / "checkpoint"))
    assert second.step == 3
    with pytest.raises(ConfigError, match="folder: 3 is not a name, path or URI; give one such as"):
        second.load(3)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_training_lowers_the_loss() -> None:
    state, plan = _state()
    losses: list[float] = []

    class Watch(Callback):
        def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
            losses.append(line["loss"])

    long = replace(plan, total_steps=60)
    fit(state, state.method, long, _batches(1), callbacks=[Watch()], reporter=LocalReporter())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("norm", [None, 5e-4])
def test_values_of_the_gradient_are_clipped_before_its_norm(norm: float | None) -> None:
    state, plan = _state()
    seen: list[torch.Tensor] = []

    def look(*_: object) -> None:
        seen.append(torch.cat([p.grad.flatten() for p in state.method.parameters() if p.grad is not None]))

    state.optimizer.register_step_pre_hook(look)
    clipping = replace(plan, clip_grad=norm, clip_grad_value=1e-3, total_steps=1)
    fit(state, state.method, clipping, _batches(1), reporter=LocalReporter())
    if norm is None:
        assert seen[0].abs().max().item() == pytest.approx(1e-3)
        assert seen[0].norm() > 2e-3
    else:
        assert seen[0].norm().item() == pytest.approx(norm, rel=1e-2)


def test_loss_that_is_not_finite_names_the_step_and_leaves_the_weights(tmp_path: Path) -> None:
    state, plan = _state()
    batches = _batches()
    batches[2].views["global"][0, 0, 0, 0, 0] = math.nan
    before: dict[str, torch.Tensor] = {}

    class Keep(Callback):
        def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
            before.update({name: p.clone() for name, p in run.state.method.named_parameters()})

    with pytest.raises(NonFiniteLoss, match="not finite at step 2"):
        fit(state, state.method, plan, batches, callbacks=[Keep()], reporter=LocalReporter(tmp_path))
    assert_same(before, dict(state.method.named_parameters()))


@pytest.mark.thorough
class _Returning(SimCLR):
    """SimCLR whose step returns something else."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """Those of SimCLR."""

    change: Callable[[StepOutput], Any]

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """See `Method.training_step`."""
        changed: StepOutput = self.change(super().training_step(batch, step))
        return changed


def _train_with(change: Callable[[StepOutput], Any]) -> dict[str, float]:
    config = load_config("quickstart", [*SMALL, "train.epochs=1", "method.name=tests.train.test_loop:_Returning"])
    state = TrainState.create(Setup.of(config, *IMAGES))
    method: Any = state.method
    method.change = change
    return fit(state, method, TrainPlan.from_config(config, IMAGES[0]), _batches(), reporter=LocalReporter())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out.loss, "returned Tensor; return StepOutput"),
        (lambda out: None, "returned NoneType; return StepOutput"),
        (lambda out: StepOutput(1.0), "as its loss 1.0; return a scalar"),  # type: ignore[arg-type]
        (lambda out: StepOutput(out.loss[None]), r"as its loss a tensor \[1\]; return a scalar"),
        (lambda out: StepOutput(out.loss.detach()), "a loss without a gradient"),
        (lambda out: StepOutput(out.loss, {"a": [1.0]}), r"as metric 'a' \[1.0\]; return a scalar"),  # type: ignore[dict-item]
        (lambda out: StepOutput(out.loss, {"a": torch.ones(4)}), r"as metric 'a' a tensor \[4\]; return a scalar"),
        (lambda out: StepOutput(out.loss, {"step": out.loss.detach()}), "logs step, which every run logs itself"),
    ],
)
def test_what_is_no_result_of_a_step_is_refused_with_its_method(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^_Returning.training_step (returned )?{message}"):
        _train_with(change)


def test_metrics_of_a_step_may_be_plain_numbers() -> None:
    assert _train_with(lambda out: StepOutput(out.loss, {"a": 2, "b": 0.5}))["a"] == 2.0  # type: ignore[dict-item]


def test_what_is_no_list_of_callbacks_is_refused_and_none_logs_numbers_of_the_loop() -> None:
    state, plan = _state()
    for callbacks in (_StopAt(1), [_StopAt], ["windows"]):
        with pytest.raises(ConfigError, match=r"^callbacks"):
            fit(state, state.method, plan, _batches(), callbacks=callbacks, reporter=LocalReporter())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a callback logs epoch, loss, which every run logs itself; choose other"):
        Run(state, plan).log({"loss": 1.0, "epoch": 2.0, "mine": 3.0})


def test_metrics_behind_the_restored_step_are_cut_off(tmp_path: Path) -> None:
    state, plan = _state()
    fit(
        state,
        state.method,
        plan,
        _batches(),
        callbacks=[MetricsLog(tmp_path), TensorBoard(tmp_path)],
        reporter=LocalReporter(tmp_path),
    )
    lines = parse_metrics((tmp_path / "metrics.jsonl").read_bytes())
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert ["step_s" in line for line in lines] == [number > WARM_UP for number in range(1, 13)]
    assert {"loss", "lr", "epoch", "images_per_s", "step_s", "data_wait", "memory_gb"} <= lines[WARM_UP].keys()
    assert list(tmp_path.glob("events.out.tfevents.*"))

    again, _ = _state()
    again.load(tmp_path / "checkpoint_000000010")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "los')  # a line that a kill cut short
    fit(again, again.method, plan, _batches(), callbacks=[MetricsLog(tmp_path)], reporter=LocalReporter())
    repeated = parse_metrics((tmp_path / "metrics.jsonl").read_bytes())
    assert [line["step"] for line in repeated] == list(range(1, 13))
    assert [line["loss"] for line in repeated] == [line["loss"] for line in lines]


@pytest.mark.thorough
def test_old_checkpoints_go_and_a_draft_is_no_checkpoint(tmp_path: Path) -> None:
    state, plan = _state()
    fit(state, state.method, plan, _batches(), reporter=LocalReporter(tmp_path, keep=1))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_000000012"]
    (tmp_path / "draft_checkpoint_000000020").mkdir()
    restored = LocalReporter(tmp_path).restore()
    assert restored is not None
    assert restored.name == "checkpoint_000000012"


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first, second = _state()[0], _state()[0]
    assert_same(first.method.state_dict(), second.method.state_dict())
    other = TrainState.create(Setup.of(load_config("quickstart", [*SMALL, "seed=1"]), *IMAGES))
    assert not torch.equal(first.method.backbone.conv1.weight, other.method.backbone.conv1.weight)
    assert isinstance(first.method, SimCLR)
