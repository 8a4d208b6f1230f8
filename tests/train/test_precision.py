"""fp16, products of fp32 tensors, memory format and compiled blocks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.methods.shared.device import prepare_device
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from tests.train.problem import StopAt, batches, differing, problem, tensors_of


class Watch(Callback):
    """Takes what a step leaves."""

    def __init__(self) -> None:
        self.scales: list[float] = []
        self.weights: list[torch.Tensor] = []

    def on_step_end(self, run: Run, step: Step, out: object) -> None:
        self.scales.append(run.state.scaler.get_scale())
        self.weights.append(next(run.state.method.parameters()).detach().clone())


def trained(*overrides: str, watch: Watch | None = None, **options: Any) -> Any:
    state, plan = problem(*overrides)
    fit(state, state.method, plan, batches(plan), callbacks=[watch or Watch()], reporter=LocalReporter(), **options)
    return state


@pytest.mark.thorough
def test_fp16_steps_are_close_to_those_of_fp32() -> None:
    half, full = trained("train.precision=fp16"), trained("train.precision=fp32")
    for name, value in full.method.state_dict().items():
        torch.testing.assert_close(half.method.state_dict()[name], value, rtol=0.05, atol=0.02)
    assert differing(tensors_of(half), tensors_of(full)) != []


@pytest.mark.thorough
def test_an_update_whose_gradient_overflows_is_left_out_and_the_scale_halved() -> None:
    state, plan = problem("train.precision=fp16")
    state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    watch = Watch()
    start = next(state.method.parameters()).detach().clone()
    fit(state, state.method, plan, batches(plan), callbacks=[watch], reporter=LocalReporter())
    left_out = [torch.equal(weight, start) for weight in watch.weights]
    assert left_out[0]
    assert watch.scales[0] == 2.0**125
    assert state.step == plan.total_steps, "the clock counts the step"


@pytest.mark.thorough
def test_gradients_are_clipped_at_their_own_size_not_at_the_scaled_one() -> None:
    most = 1e-3
    seen: list[float] = []
    state, plan = problem("train.precision=fp16", f"train.clip_grad={most}")
    state.optimizer.register_step_pre_hook(
        lambda *_: seen.append(
            math.sqrt(sum(float(p.grad.pow(2).sum()) for p in state.method.parameters() if p.grad is not None))
        )
    )
    fit(state, state.method, plan, batches(plan), reporter=LocalReporter())
    assert seen == pytest.approx([most] * len(seen), rel=1e-3)


@pytest.mark.thorough
def test_a_resumed_fp16_run_goes_on_with_its_scale_to_the_bit(tmp_path: Path) -> None:
    def begun() -> Any:
        state, plan = problem("train.precision=fp16")
        state.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        return state, plan

    whole, plan = begun()
    fit(whole, whole.method, plan, batches(plan), reporter=LocalReporter())
    first, plan = begun()
    fit(first, first.method, plan, batches(plan), callbacks=[StopAt(3)], reporter=LocalReporter(tmp_path))
    second, plan = problem("train.precision=fp16")
    second.load(LocalReporter(tmp_path).restore())
    assert second.scaler.get_scale() == 512.0, "it grew once, after two steps"
    fit(second, second.method, plan, batches(plan), reporter=LocalReporter())
    assert differing(tensors_of(second), tensors_of(whole)) == []
    assert second.scaler.get_scale() == whole.scaler.get_scale() == 4096.0


@pytest.mark.thorough
def test_the_scale_is_logged() -> None:
    state, plan = problem("train.precision=fp16", "train.log_every=1st")
    metrics = fit(state, state.method, plan, batches(plan), reporter=LocalReporter())
    assert metrics["loss_scale"] == state.scaler.get_scale() > 1


@pytest.mark.thorough
def test_a_checkpoint_takes_on_the_memory_format_of_the_run_that_loads_it(tmp_path: Path) -> None:
    state = trained("optim=adamw")
    state.save(tmp_path, {})
    other, _ = problem("optim=adamw", "train.channels_last=true")
    other.load(tmp_path)
    for parameter, values in other.optimizer.state.items():
        assert values["exp_avg"].stride() == parameter.stride(), "fused kernels refuse other strides"
    assert differing(tensors_of(state), tensors_of(other)) == []


@pytest.mark.thorough
def test_channels_last_changes_where_numbers_lie_and_not_what_they_are() -> None:
    state, _ = problem("train.channels_last=true")
    assert state.method.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    # torch 2.15 writes behind the end of its memory for fewer channels, on some CPUs
    wide = "backbone.width=16"
    other, full = trained("train.channels_last=true", wide), trained(wide)
    for name, value in full.method.state_dict().items():
        torch.testing.assert_close(other.method.state_dict()[name], value, rtol=1e-3, atol=1e-3)


@pytest.fixture
def _default_products() -> Any:
    yield
    for products in (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv):
        products.fp32_precision = "none"


@pytest.mark.usefixtures("_default_products")
@pytest.mark.parametrize("kind", ["ieee", "tf32", "bf16"])
def test_products_of_fp32_tensors_are_made_of_what_is_asked_for(kind: str) -> None:
    prepare_device(load_config("quickstart", [f"train.fp32_products={kind}"]).train, torch.device("cpu"))
    assert torch.backends.mkldnn.matmul.fp32_precision == kind
    assert torch.backends.mkldnn.conv.fp32_precision == kind


def test_bf16_products_are_refused_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"train.fp32_products=bf16 is for CPUs; set tf32, or train.precision=bf16"):
        prepare_device(load_config("quickstart", ["train.fp32_products=bf16"]).train, torch.device("cuda"))


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"train.compile=true needs a C\+\+ compiler on a CPU"):
        prepare_device(load_config("quickstart", ["train.compile=true"]).train, torch.device("cpu"))


@pytest.mark.slow
def test_compiled_blocks_train_as_plain_ones() -> None:
    compiled, plain = trained("train.compile=true", "train.recompute=[res2]"), trained()
    for name, value in plain.method.state_dict().items():
        torch.testing.assert_close(compiled.method.state_dict()[name], value, rtol=1e-3, atol=1e-3)
