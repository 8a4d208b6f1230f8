"""Views that grow during a run: `train.view_scale`."""

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
import torch

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train import LocalReporter, fit
from raysl.train.prepare import Prepared, check_views, prepare
from raysl.train.state import TrainState
from raysl.train.view_stages import describe_stages, stage_steps, view_stages
from tests.runs.runs import assert_same

SMALL = [
    "data=synthetic",
    "data.image_size=32",
    "data.num_train=48",
    "data.num_test=1",
    "train.batch_size=16",
    "train.epochs=4",
]
NANO = ["backbone=vit", "backbone.mask_token=true", "backbone.size=nano", "backbone.patch_size=4"]


def settings(scale: str, method: str = "simclr", more: Sequence[str] = ()) -> RunConfig:
    common = ["benchmarks=[]", "views=null", "train.online_knn_every=null", f"method={method}"]
    return load_config("quickstart", [*common, *SMALL, *more, f"train.view_scale={scale}"])


@pytest.mark.thorough
def test_each_epoch_has_the_views_of_its_stage() -> None:
    run = prepare(settings("{0%: 0.5, 30%: 0.75, 75%: 1}"))
    sides = [batch.views["global"].shape[-1] for batch in islice(LocalBatches(run.loader).from_step(0), 12)]
    # 30 % of 4 epochs lies inside the second one, so the stage begins with the third
    assert sides == [16] * 6 + [24] * 3 + [32] * 3
    assert stage_steps(run.loader.stages, run.setup.plan) == [6, 3, 3]
    assert describe_stages(run.loader.stages) == (
        "views of 16 px from epoch 0 on, 24 px from epoch 2 on, 32 px from epoch 3 on"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dino", "dino_v2", "ibot"])
def test_small_crops_scale_with_the_large_ones_to_whole_patches(method: str) -> None:
    heads = ("head", "patch_head") if method == "dino_v2" else ("head",)
    small = [f"method.{head}.{word}" for head in heads for word in ("hidden_dim=32", "num_prototypes=64")]
    more = [*NANO, *small, "method.views.size=32", "method.views.local_size=16", "method.views.num_local=2"]
    run = prepare(settings("{0%: 0.4, 50%: 1}", method, more))
    batch = next(LocalBatches(run.loader).from_step(0))
    assert {name: views.shape[-1] for name, views in batch.views.items()} == {"global": 12, "local": 8}


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["data.exact_below=1", "data.lanes=4", "data.is_random_access=false"]])
def test_images_and_parts_of_them_are_those_without_the_setting(more: list[str]) -> None:
    small, whole = (prepare(settings(scale, more=more)).loader for scale in ("{0%: 0.5}", "null"))
    assert small.has_windows == whole.has_windows == bool(more)
    pairs = zip(LocalBatches(small).from_step(2), LocalBatches(whole).from_step(2), strict=False)
    for one, other in islice(pairs, 4):
        assert torch.equal(one.index, other.index)
        assert torch.equal(one.label, other.label)
    images, keys = [torch.zeros(3, 40, 60, dtype=torch.uint8)] * 16, small.order.batch(3)
    boxes = [loader.recipe_at(1).with_boxes().crop(images, keys, 0, 1)["global.box"] for loader in (small, whole)]
    assert torch.equal(*boxes)


def _train(run: Prepared, folder: Path) -> TrainState:
    """Train to the end, from the newest checkpoint of the folder on."""
    state, reporter = TrainState.create(run.setup), LocalReporter(folder, keep=9, show_progress=False)
    if (restored := reporter.restore()) is not None:
        state.load(restored)
    fit(state, state.method, run.setup.plan, LocalBatches(run.loader), reporter=reporter)
    return state


@pytest.mark.thorough
def test_a_run_that_goes_on_in_any_stage_ends_in_the_same_bits(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5, 50%: 1}", more=["train.checkpoint_every=2st"]))
    whole = _train(run, tmp_path / "whole")
    for step in (4, 6, 8):
        name = f"checkpoint_{step:09}"
        shutil.copytree(tmp_path / "whole" / name, tmp_path / f"from {step}" / name)
        again = _train(run, tmp_path / f"from {step}")
        assert_same(whole.method.state_dict(), again.method.state_dict())


@pytest.mark.parametrize(
    ("scale", "method", "more", "message"),
    [
        ("{50%: 1}", "simclr", [], r"no stage begins with the run; add 0%, such as \{0%: 0.5, 50%: 1\}"),
        ("{0%: 0.5, 99%: 1}", "simclr", [], "none of the 4 epochs begins at 99% or later; give an earlier point"),
        ("{0%: 0.5, 30%: 0.7, 2ep: 1}", "simclr", [], "two stages would begin with epoch 2"),
        ("{0st: 0.5}", "simclr", [], "0st is in updates; give a share of the run"),
        ("{0: 0.5}", "simclr", [], "the key 0 is not a text"),
        ("{0%: 2}", "simclr", [], r"2.0 is out of range; give a number in \[0.1, 1\]"),
        ("{0%: 0.5, 50%: 1}", "mae", NANO, r"mae needs views of one size \(.*\); leave it out"),
        (
            "{0%: 0.5, 50%: 1}",
            "simclr",
            ["backbone=alexnet", "backbone.image_size=64", "data.image_size=64"],
            "train.view_scale: 0.5: ",
        ),
    ],
)
def test_stages_that_do_not_fit_are_refused(scale: str, method: str, more: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(settings(scale, method, more))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["aim", "cmae", "colorization", "mae", "pixio"])
def test_methods_with_a_part_for_one_size_refuse_smaller_views(method: str) -> None:
    words = ["train.batch_size=16", "train.epochs=4", "train.view_scale={0%: 0.5, 50%: 1}"]
    config = load_config(f"cifar10/{method}", words)
    setup, classes = Setup.of(config, 48, 10), Classes.of(config)
    with pytest.raises(ConfigError, match=f"{method} needs views of one size"):
        view_stages(setup, classes, check_views(setup, classes))
