"""Recipes for many images adapt to few: batch, warm-up, queue and clusters, unless a user has set them."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from raysl.components import ALIASES
from raysl.config.docs import annotate
from raysl.config.dump import dump
from raysl.config.load import apply_overrides, load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.course import peak_lr
from raysl.plan.adapt import adapt, describe_adapted, power_of_two
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train import prepare as room
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.methods.properties import FEW
from tests.tiers import each

ENOUGH = 1e15  # bytes


def of(name: str, *words: str) -> RunConfig:
    return load_config(name, ["benchmarks={}", *words])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """40 images of two classes."""
    for number in range(40):
        (folder := tmp_path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (6 * number, 0, 0)).save(folder / f"{number:02}.png")
    return tmp_path / "images"


def test_the_batch_is_the_largest_power_of_two_of_which_an_epoch_has_two() -> None:
    for num_samples in (2, 3, 31, 800, 1023, 1024, 4095):
        batch = adapt(of("simclr"), num_samples).train.batch_size
        assert batch == power_of_two(batch) <= num_samples
        assert batch in (num_samples, 16) or 2 * batch <= num_samples < 4 * batch or num_samples < 32
    assert adapt(of("simclr"), 4096).train.batch_size == 4096, "it fits"


@pytest.mark.parametrize(("scaling", "share"), [("linear", 1 / 16), ("sqrt", 1 / 4), ("none", 1)])
def test_the_learning_rate_follows_by_the_scaling_of_the_recipe(scaling: str, share: float) -> None:
    before = of("simclr", f"optim.lr_scaling={scaling}")
    after = adapt(before, 800)
    lrs = [peak_lr(config.optim, config.train.batch_size) for config in (before, after)]
    assert lrs[1] == pytest.approx(lrs[0] * share)


def test_each_of_three_workers_gets_a_power_of_two() -> None:
    config = of("simclr", "train.workers=3", "train.batch_size=3072", "adapt=[train.batch_size]")
    assert adapt(config, 800).train.batch_size == 3 * 64
    prepared = TrainPlan.from_config(replace(config, data=replace(config.data, lanes=48)), 800, world=3)
    assert prepared.rows == [64, 64, 64]


def test_a_batch_for_reference_workers_fits_after_it_is_scaled() -> None:
    config = of("simclr", "train.workers=2", "train.reference_workers=8")
    setup = Setup.of(config, 800)
    assert setup.config.train.batch_size <= 400
    assert setup.as_written.train.batch_size == 4 * setup.config.train.batch_size
    assert setup.as_written.train.batch_size % 8 == 0


def test_what_a_user_sets_is_refused_and_never_changed(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("base: simclr\ntrain: {batch_size: 2048}\n")
    for config, size in [(of("simclr", "train.batch_size=4096"), "4096"), (of(str(own)), "2048")]:
        with pytest.raises(ConfigError, match=f"800 training images do not fill a batch of {size}; set train.batch_s"):
            TrainPlan.from_config(config, 800)
    kept = of("moco", "method.queue_size=65536", "optim.warmup=900ep")
    assert adapt(kept, 100).method.queue_size == 65536  # type: ignore[attr-defined]
    assert adapt(kept, 100).optim.warmup == kept.optim.warmup
    assert apply_overrides(of("simclr"), ["train.batch_size=512"]).adapt == ("optim.warmup",)
    assert of("simclr", "adapt=[]").adapt == ()


def test_a_configuration_that_was_printed_adapts_as_the_packaged_one(tmp_path: Path) -> None:
    printed = tmp_path / "printed.yaml"
    printed.write_text(annotate(of("moco")))
    assert of(str(printed)).adapt == of("moco").adapt == ("method.queue_size", "optim.warmup", "train.batch_size")


@pytest.mark.thorough
def test_stored_settings_are_final(tmp_path: Path) -> None:
    stored = tmp_path / "run.yaml"
    stored.write_text(dump(Setup.of(of("simclr"), 800).as_written))
    config = of(str(stored))
    assert (config.adapt, config.train.batch_size) == ((), 256)
    assert adapt(config, 100) is config


def test_a_method_that_replaces_another_may_adapt_its_own_settings() -> None:
    assert "method.queue_size" in apply_overrides(of("simclr"), ["method=moco"]).adapt
    assert "method.queue_size" not in apply_overrides(of("simclr", "adapt=[]"), ["method=moco"]).adapt


def test_a_name_that_cannot_be_adapted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"adapt: 'train.epochs' cannot be adapted; name some of .*train.batch_size"):
        of("simclr", "adapt=[train.epochs]")


@pytest.mark.parametrize("name", ["capi", "cifar10/data2vec"])
def test_a_warm_up_longer_than_the_run_becomes_a_tenth_of_it(name: str) -> None:
    before = of(name, "optim.warmup=99999st", "adapt=[optim.warmup,train.batch_size]")
    plan = TrainPlan.from_config(before, 800)
    assert plan.optim.warmup.steps(plan.total_steps, plan.epoch_len) == round(plan.total_steps / 10)


@pytest.mark.parametrize("method", ["moco", "swav", "nnclr", "ressl", "smog", "deepcluster", "deepcluster_v2"])
def test_queues_and_clusters_fit_the_images(method: str) -> None:
    config = adapt(of(method), 800)
    settings: Any = config.method
    if queue := getattr(settings, "queue_size", getattr(settings, "queue_length", 0)):
        assert config.train.batch_size <= queue <= 800
        assert queue % config.train.batch_size == 0
    for name in ("clusters", "prototypes", "num_groups"):
        value = getattr(settings, name, None)
        assert value in (None, 64, (64,), (64, 64, 64)), "a tenth of the images, as a power of two"


def test_one_line_names_what_was_adapted_with_its_numbers() -> None:
    before = of("moco", "optim.lr_scaling=linear")
    line = describe_adapted(before, adapt(before, 200), 200)
    assert line == (
        "settings adapted to 200 images: train.batch_size 256 -> 64, peak learning rate 0.03 -> 0.0075 "
        "(optim.lr_scaling=linear), method.queue_size 65,536 -> 192; adapt=[] keeps those of the recipe"
    )
    assert describe_adapted(before, adapt(before, 1 << 20), 1 << 20) is None


CANNOT = {"distill", "salt", "wmse"}
"""Two need a teacher; W-MSE whitens 128 dimensions, which takes more images."""


@pytest.mark.parametrize("method", each(sorted({*ALIASES["method"]} - CANNOT), now=FEW))
def test_every_recipe_starts_on_a_folder_of_few_images(
    method: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_memory_of_worker", lambda train: ENOUGH)
    config = of(method, f"data={images}")
    plan = prepare(config).setup.plan
    assert plan.batch_size <= 40
    assert plan.total_steps >= config.train.epochs


@pytest.mark.thorough
def test_a_batch_that_the_memory_does_not_hold_is_smaller(
    images: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sizes = []
    for num_bytes in (ENOUGH, 8e9, 4e9):
        monkeypatch.setattr(room, "_memory_of_worker", lambda train, num_bytes=num_bytes: num_bytes)
        sizes.append(prepare(of("simclr", f"data={images}")).setup.plan.batch_size)
    assert sizes[0] == 16
    assert sizes[0] > sizes[1] == 2 * sizes[2] > 0
    assert "adapted to 40 images and the memory of this machine: train.batch_size 4,096 -> " in caplog.text
    typed = of("simclr", f"data={images}", "train.batch_size=32")
    assert prepare(typed).setup.plan.batch_size == 32


def test_a_cluster_has_a_memory_that_the_driver_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", "10.0.0.1:6379")
    assert room._memory_of_worker(of("simclr").train) is None


@pytest.mark.thorough
def test_a_run_goes_on_with_what_its_first_start_adapted(tmp_path: Path) -> None:
    config = of("digits/moco", "adapt=[train.batch_size,method.queue_size,optim.warmup]", f"storage={tmp_path}")
    setup = Setup.of(config, 40, 10)
    assert setup.plan.batch_size == 16
    folder = RunFolder.of(config)
    folder.claim(setup.as_written)
    state = TrainState.create(setup)
    state.step = 2
    state.save(Path(folder.path) / "checkpoint_000000002", {})
    again = folder.as_begun(config)
    assert Setup.of(again, 400, 10).as_written == setup.as_written, "though there are more images, or more memory, now"
    folder.claim(Setup.of(again, 400, 10).as_written, folder.newest())
