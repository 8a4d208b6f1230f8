"""The loop on a GPU: no waiting, bf16, exact resumes, late flags, batches made ahead on a stream of their own."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.checkpoint.backbone import load_backbone
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.order import Order
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train import LocalReporter, NonFiniteLoss, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.stop import StopRequest
from raysl.transforms.recipes import Crops
from raysl.transforms.view_recipe import evaluation_recipe
from tests.gpu.marks import CUDA, on_gpu
from tests.rank_processes import RunRanks
from tests.train.problem import StopAt, batches, differing, problem, tensors_of

pytestmark = on_gpu


def digits_loader(batch_size: int = 64) -> Loader:
    """Views of digits, augmented on the device, with everything that SimCLR's views have."""
    config = load_config("quickstart")
    split = resolve("source", "digits")(config.data).required("train")
    return Loader(
        split=split,
        recipe=Crops(size=16, affine_p=0.5, degrees=10).recipe(),
        order=Order(0, split.fingerprint, split.unit_sizes, batch_size, 8, 64, True),
        mean=config.data.mean,
        std=config.data.std,
        augment_in_task=False,
        plain_recipe=evaluation_recipe(16),
    )


class _NoWaiting(Callback):
    """Lets torch raise where the host waits for the GPU, from the third step to the one before the last."""

    def __init__(self) -> None:
        self.checked = 0

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        torch.cuda.set_sync_debug_mode("error" if 2 <= step.index < step.total - 1 else "default")
        self.checked += torch.cuda.get_sync_debug_mode() > 0


@pytest.fixture(autouse=True)
def _back_to_default() -> Any:
    yield
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optim", ["sgd", "lars"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_step_waits_for_the_gpu(optim: str, precision: str) -> None:
    words = [f"optim={optim}", f"train.precision={precision}", "train.clip_grad=1.0"]
    state, plan = problem(*words, device=CUDA)
    watch, stop = _NoWaiting(), StopRequest(lambda: False)
    fit(state, state.method, plan, batches(plan, CUDA), callbacks=[stop, watch], reporter=LocalReporter())
    assert watch.checked == plan.total_steps - 3


def test_making_batches_ahead_does_not_wait_either() -> None:
    state, plan = problem("train.precision=bf16", device=CUDA)
    loader = digits_loader()
    plan = replace(plan, batch_size=64, total_steps=10, epoch_len=loader.order.epoch_len, last_rows=64)
    watch = _NoWaiting()
    stream = LocalBatches(loader, device=CUDA)
    fit(state, state.method, plan, stream, callbacks=[watch], reporter=LocalReporter())
    assert watch.checked == 7


def test_batches_made_ahead_are_those_made_at_once_whatever_else_the_gpu_does() -> None:
    loader = digits_loader()
    work = torch.randn(2048, 2048, device=CUDA)
    sums: list[Tensor] = []
    for batch in islice(LocalBatches(loader, device=CUDA).from_step(0), 30):
        for _ in range(20):  # keeps the consumer's stream far behind the host
            work = (work @ work).tanh()
        sums.append(torch.stack([batch.views["global"].double().sum(), batch.views["global"][-1].double().std()]))
        sums.append(batch.index[:2].double())
        del batch  # its memory is free for the next one, but for what the stream still has to do with it
    at_once: list[Tensor] = []
    for step in range(30):
        whole = loader.finish(loader.load(step, 0, 1), step, CUDA)
        at_once.append(torch.stack([whole.views["global"].double().sum(), whole.views["global"][-1].double().std()]))
        at_once.append(whole.index[:2].double())
    assert torch.equal(torch.stack(sums), torch.stack(at_once))


def test_batches_are_those_of_a_cpu() -> None:
    loader = digits_loader()
    there, here = LocalBatches(loader, device=CUDA).from_step(3), LocalBatches(loader).from_step(3)
    for one, other in islice(zip(there, here, strict=False), 3):
        assert one.views["global"].device == CUDA
        assert torch.equal(one.index.cpu(), other.index)
        assert torch.equal(one.label.cpu(), other.label)
        gap = (one.views["global"].cpu() - other.views["global"]).abs() * 0.37 * 255  # in levels
        assert (gap > 1.5).float().mean() < 1e-3
        assert gap.mean() < 0.1


def test_an_error_of_the_source_reaches_the_loop() -> None:
    loader = replace(digits_loader(), mean=(0.0, 0.0))
    with pytest.raises(RuntimeError, match="size"):
        next(LocalBatches(loader, device=CUDA).from_step(0))


def gradient(precision: str) -> tuple[float, Tensor]:
    state, plan = problem(f"train.precision={precision}", device=CUDA)
    (batch, *_) = batches(plan, CUDA)
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        out = state.method(batch, plan.step(0))
    out.loss.backward()
    return out.loss.item(), torch.cat([p.grad.flatten() for p in state.method.parameters()])


def test_bf16_gives_the_loss_and_the_gradient_of_fp32_within_its_precision() -> None:
    (loss, grad), (full_loss, full_grad) = gradient("bf16"), gradient("fp32")
    assert grad.dtype == torch.float32
    assert loss == pytest.approx(full_loss, rel=3e-2)
    assert torch.cosine_similarity(grad, full_grad, dim=0) > 0.95


def resumed_and_whole(folder: str) -> dict[str, Any]:
    """A run that nothing disturbs, and one that stops and goes on, with kernels that repeat."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    words = ("train.precision=bf16", "train.sync_bn=true")
    own = Path(folder, str(dist.world()))

    def train(*callbacks: Callback, restore: bool = False) -> dict[str, Tensor]:
        state, plan = problem(*words, device=CUDA)
        reporter = LocalReporter(own)
        restored = reporter.restore() if restore else None
        if restored is not None:
            state.load(restored)
        model = dist.data_parallel(state.method)
        fit(state, model, plan, batches(plan, CUDA), callbacks=callbacks, reporter=reporter)
        return tensors_of(state)

    train(StopAt(3))
    resumed = train(restore=True)
    own = Path(folder, f"{dist.world()} whole")
    return {"resumed": resumed, "whole": train()}


@pytest.mark.parametrize("world", [1, 2])
def test_with_deterministic_kernels_a_resume_changes_no_bit(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_ranks: RunRanks
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for rank in run_ranks(world, resumed_and_whole, str(tmp_path), timeout=240):
        assert differing(rank["whole"], rank["resumed"]) == []


def test_a_lost_loss_is_found_one_step_late_and_nothing_bad_is_saved(tmp_path: Path) -> None:
    state, plan = problem("train.checkpoint_every=2st", device=CUDA)
    made = batches(plan, CUDA)
    made[2].views["global"][0, 0, 0, 0, 0] = math.nan
    with pytest.raises(NonFiniteLoss, match="not finite at step 2 "):
        fit(state, state.method, plan, made, reporter=LocalReporter(tmp_path))
    assert state.step == 3
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_000000002"]


def test_a_wish_to_stop_is_heeded_one_step_later_with_a_checkpoint(tmp_path: Path) -> None:
    state, plan = problem(device=CUDA)
    asked = StopRequest(lambda: True)
    asked.was_requested.set()
    fit(state, state.method, plan, batches(plan, CUDA), callbacks=[asked], reporter=LocalReporter(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_000000002"]


def test_a_checkpoint_of_a_gpu_loads_on_a_cpu_and_back(tmp_path: Path) -> None:
    state, plan = problem(device=CUDA)
    conv = state.method.backbone.conv1.weight
    assert conv.is_contiguous(memory_format=torch.channels_last)
    fit(state, state.method, plan, batches(plan, CUDA), reporter=LocalReporter(tmp_path))
    restored = LocalReporter(tmp_path).restore()
    assert restored is not None
    on_cpu, plan = problem()
    on_cpu.load(restored)
    assert differing(tensors_of(on_cpu), tensors_of(state)) == []
    assert on_cpu.method.backbone.conv1.weight.is_contiguous()
    back, _ = problem(device=CUDA)
    back.load(restored)
    assert differing(tensors_of(back), tensors_of(state)) == []
    assert back.method.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    longer = replace(plan, total_steps=plan.total_steps + 4)
    fit(back, back.method, longer, batches(plan, CUDA), reporter=LocalReporter())
    assert back.step == plan.total_steps + 4
    images = torch.randn(4, 3, 8, 8)
    here, there = load_backbone(str(tmp_path))(images), state.method.export().eval()(images.to(CUDA)).detach()
    torch.testing.assert_close(here, there.cpu(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("words", [["train.cuda_graphs=false"], ["train.cuda_graphs=true"]])
def test_a_compiled_step_trains_as_a_plain_one(words: list[str], tmp_path: Path) -> None:
    states = []
    for step in (["train.compile=step", *words], []):
        state, plan = problem("train.epochs=3", *step, device=CUDA)
        reporter = LocalReporter(tmp_path / str(len(step)))
        fit(state, state.method, plan, batches(plan, CUDA), reporter=reporter)
        states.append(state)
    compiled, plain = (state.method.state_dict() for state in states)
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-2, atol=1e-2)
    again, _ = problem(device=CUDA)
    restored = LocalReporter(tmp_path / "2").restore()
    assert restored is not None
    again.load(restored)
    assert differing(tensors_of(again), tensors_of(states[0])) == []
