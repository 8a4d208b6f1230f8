"""Callbacks, optimizers and options of training wait for a GPU in the steps in which they are due, and in no other."""

import pytest

from raysl.benchmarks.benchmark import FeatureSet
from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.training import number_of, trained
from tests.fake_gpu.watch import TO_GPU_PAGEABLE

pytestmark = needs_pretended_gpu

DUE = {
    "embedding": ["callbacks.embedding.every=4st"],
    "function": ["callbacks.function.every=4st", "callbacks.function.function=tests.fake_gpu.test_options:measured"],
    "histograms": ["callbacks.histograms.every=4st"],
    "view_images": ["callbacks.view_images.every=4st"],
    "precise_bn": [],
    "memory_stats": [],
    "windows": [],
    "learning_rates": [],
    "iteration_timer": [],
    "non_finite_finder": [],
    "early_stop": ["callbacks.early_stop.metric=loss", "callbacks.early_stop.mode=min"],
    "checkpoint_keeper": ["callbacks.checkpoint_keeper.metric=loss", "callbacks.checkpoint_keeper.mode=min"],
}
"""Settings of the callbacks, each due in the last of four steps."""
OPTIONS = {
    "sgd": ["optim=sgd"],
    "adam": ["optim=adam"],
    "adamw": ["optim=adamw"],
    "lars": ["optim=lars"],
    "larc": ["optim=larc", "optim.clip=true"],
    "RMSprop": ["optim=torch", "optim.optimizer=RMSprop"],
    "clip_grad": ["train.clip_grad=1.0"],
    "clip_grad over tensors": ["train.clip_grad=1.0", "train.clip_grad_over=tensor"],
    "clip_grad over parts": ["train.clip_grad=1.0", "train.clip_grad_over=part"],
    "clip_grad_value": ["train.clip_grad_value=0.5"],
    "accumulate": ["train.accumulate=2"],
    "recompute": ["train.recompute=all"],
    "ema": ["train.ema=0.99"],
    "ema of every second step": ["train.ema=0.99", "train.ema_every=2", "train.ema_buffers=average"],
    "online kNN": ["train.online_knn_every=1ep"],
    "online probe": ["train.online_probe=1ep"],
    "everything": ["optim=lars", "train.clip_grad=1.0", "train.accumulate=2", "train.recompute=all", "train.ema=0.9"],
}
WAITING = {"embedding", "function", "histograms", "view_images", "memory_stats", "online kNN", "online probe"}
"""What reads from the GPU where it is due."""
OF_THE_FIRST = {"view_images"}
"""What is due in the first step too."""
QUICK = {"histograms", "everything"}
ALONE = {"RMSprop-fp16"}
"""torch's other optimizers have its scaler read the flag of an overflow in each step."""


def measured(run: object, backbone: object) -> dict[str, float]:
    """Read a number from the GPU."""
    return {"weight": next(backbone.parameters()).sum().item()}  # type: ignore[attr-defined]


def cases() -> list[object]:
    settings = {name: [f"callbacks=[{name}]", *words] for name, words in DUE.items()} | OPTIONS
    return [
        pytest.param(name, words, precision, id=f"{name}-{precision}", marks=mark)
        for name, words in settings.items()
        for precision in ("bf16", "fp16")
        if f"{name}-{precision}" not in ALONE
        for mark in [pytest.mark.thorough if name in QUICK and precision == "fp16" else pytest.mark.slow]
    ]


@pytest.mark.parametrize(("name", "words", "precision"), cases())
def test_it_waits_only_where_it_is_due(
    name: str, words: list[str], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeatureSet, "check_finite", lambda features, split: None)  # it reads a count, which is 1 here
    seen = trained("simclr", f"train.precision={precision}", *words)
    assert seen.stay == []
    assert seen.watch.errors == []
    steps = [event for event in seen.before_the_last() if number_of(event) or name not in OF_THE_FIRST]
    assert [event for event in steps if event.is_wait or event.kind == TO_GPU_PAGEABLE] == []
    places = {event.place.partition(":")[0] for event in seen.of_the_last() if event.is_wait}
    own = places - {"train/loop.py", "train/meter.py", "train/late.py"}
    assert bool(own) == (name in WAITING), own


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_end_of_an_epoch_does_not_wait_for_its_loss(precision: str) -> None:
    seen = trained("simclr", f"train.precision={precision}", "train.epochs=2")
    assert seen.plan.total_steps == 2 * seen.plan.epoch_len
    assert [event for event in seen.before_the_last() if event.is_wait] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotnet", "jigsaw", "supervised", "colorization"])
def test_measuring_the_own_task_of_a_method_waits_where_it_is_due(name: str) -> None:
    seen = trained(name, "train.eval_every=4st")
    assert seen.watch.errors == []
    assert [event for event in seen.before_the_last() if event.is_wait] == []
    assert [event for event in seen.of_the_last() if event.is_wait and "held_out" in event.place]


@pytest.mark.slow
def test_torchs_other_optimizers_wait_once_a_step_in_fp16() -> None:
    seen = trained("simclr", "train.precision=fp16", *OPTIONS["RMSprop"])
    waits = [event for event in seen.before_the_last() if event.is_wait]
    assert [event.phase for event in waits] == ["update"] * (seen.plan.total_steps - 1)
