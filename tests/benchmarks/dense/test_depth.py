"""The linear depth end to end on generated rooms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Labelled, by_name
from raysl.benchmarks.dense.depth_files import DepthImages
from raysl.benchmarks.dense.depth_head import DepthHead, gradient_loss, sig_loss
from raysl.benchmarks.dense.depths import SCORE_NAMES, depth_scores
from raysl.benchmarks.depth import Depth, head_settings
from raysl.benchmarks.metric import metrics_of
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.schedule import Duration, Step
from raysl.train.prepare import prepare
from tests.benchmarks.dense.scenes import RESNET, VIT, context
from tests.benchmarks.dense.test_crops import random_of
from tests.benchmarks.dense.test_depths import FAR, NEAR, bts, kitti, street

NO_IMAGES = Labelled(0, 0, (), None)


LARGE_PATCHES = (*VIT[:-1], "backbone.patch_size=16", "backbone.depth=1")


def config(root: Path, **fields: Any) -> Depth.Config:
    """Small and quick."""
    small = {"crop_height": 24, "crop_width": 32, "train_area": "all", "test_area": (1, 31, 1, 39), "bins": 32}
    course = {"iterations": 30, "batch_size": 4, "lr": 0.02, "warmup": Duration(2, "st"), "warm_up": 5}
    return Depth.Config(path=str(root), **(small | course | fields))


def head(folder: Path, settings: Depth.Config, *overrides: str) -> DepthHead:
    """An untrained head on a random backbone."""
    given = context(folder, *overrides)
    setup = prepare(Depth(settings).run_of(given)).setup
    return DepthHead(setup, given.checkpoint.backbone).eval()


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", [(*RESNET, "backbone.width=24"), VIT], ids=["resnet", "vit"])
def test_a_head_learns_what_is_near(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    bts(tmp_path / "data", num=8)
    given = context(tmp_path / "run", *overrides)
    before = {name: value.clone() for name, value in given.network.state_dict().items()}
    benchmark = Depth(config(tmp_path / "data", max_depth=4.0, bins=16, iterations=120, lr=0.05))
    metrics = by_name(metrics_of(benchmark.measure(given)))
    assert list(metrics) == Depth.metrics(config(tmp_path), 0)
    one_for_all = min(  # the best that a single depth for all pixels can do
        float(depth_scores(torch.full_like(label, depth), label)[0])
        for split in [DepthImages(Depth.data(benchmark.config)).split("test")]
        for label in [torch.cat([depths[depths > 0] for _, depths in map(split.sample, range(len(split)))])]
        for depth in torch.linspace(NEAR, FAR, 21).tolist()
    )
    assert metrics["rmse"].value < 0.6 * one_for_all
    assert metrics["delta1"].value > 70
    assert all(torch.equal(before[name], value) for name, value in given.network.state_dict().items())


@pytest.mark.thorough
def test_a_prediction_is_the_mean_depth_of_the_bins(tmp_path: Path) -> None:
    bts(tmp_path / "data")
    method = head(tmp_path / "run", config(tmp_path / "data"), *VIT)
    images = torch.randn(2, 3, 24, 32)
    tokens = method.backbone.tokens(images)  # type: ignore[operator]
    patches = tokens[:, 1:].transpose(1, 2).reshape(2, -1, 6, 8)
    seen = torch.cat([patches, tokens[:, 0, :, None, None].expand_as(patches)], dim=1)
    fine = F.interpolate(seen, scale_factor=4, mode="bilinear", align_corners=False)  # before the layer, as the paper
    weights = method.classifier(fine).relu() + 0.1
    bins = torch.linspace(1e-3, 10, 32)
    expected = (weights * bins[:, None, None]).sum(dim=1) / weights.sum(dim=1)
    assert torch.allclose(method.predict(images), expected, atol=1e-4)
    assert 1e-3 <= method.predict(images).min() <= method.predict(images).max() <= 10


@pytest.mark.thorough
def test_images_that_patches_do_not_cover_are_padded_around(tmp_path: Path) -> None:
    bts(tmp_path / "data")
    method = head(tmp_path / "run", config(tmp_path / "data"), *VIT)
    images = torch.randn(1, 3, 22, 29)
    padded = F.pad(images, (1, 2, 1, 1))
    assert torch.equal(method.predict(images), method.predict(padded)[:, 1:23, 1:30])


@pytest.mark.thorough
def test_the_loss_is_that_of_the_predictions(tmp_path: Path) -> None:
    bts(tmp_path / "data")
    settings = config(tmp_path / "data", class_token=False, stages=("block1", "norm"))
    method = head(tmp_path / "run", settings, *VIT)
    assert method.classifier.weight.shape == (32, 48, 1, 1)
    assert [name for name, weight in method.named_parameters() if weight.requires_grad] == [
        "classifier.weight", "classifier.bias",
    ]  # fmt: skip
    train, recipe = DepthImages(method.setup.config.data).split("train"), DepthHead.targets(method.setup)
    samples = [recipe.example(train, number, random_of(number)) for number in range(3)]
    batch = recipe.collate(samples, torch.arange(3))
    target, predicted = batch.extras["image.depth"], method.predict(batch.views["image"][:, 0])
    for index, has_variance in ((4, False), (5, True)):
        expected = sig_loss(predicted, target, has_variance) + 0.5 * gradient_loss(predicted, target)
        assert torch.equal(method(batch, Step(index, 9, 9)).loss, expected)
    off = replace(method.config, gradient_weight=0.0)
    method.config = off
    assert torch.equal(method(batch, Step(9, 10, 10)).loss, sig_loss(predicted, target))


@pytest.mark.thorough
def test_what_counts_is_inside_the_area_and_the_range(tmp_path: Path) -> None:
    bts(tmp_path / "data")
    method = head(tmp_path / "run", config(tmp_path / "data", test_area=(4, 20, 6, 30), max_depth=2.5), *VIT)
    split = DepthImages(method.setup.config.data).split("test")
    image, label = split.sample(1)
    normal = method.setup.config.data
    pixels = (image.float() / 255 - torch.tensor(normal.mean)[:, None, None]) / torch.tensor(normal.std)[:, None, None]
    with torch.no_grad():
        both = method.predict(torch.stack([pixels, pixels.flip(2)]))
    predicted = (both[0] + both[1].flip(1)) / 2  # seen mirrored too
    places = [(y, x) for y in range(4, 20) for x in range(6, 30) if 1e-3 < label[y, x] < 2.5]
    assert 0 < len(places) < 16 * 24
    values = (torch.stack([metres[place] for place in places]) for metres in (predicted, label))
    expected = depth_scores(*values)
    with torch.no_grad():
        assert torch.allclose(method.measure(split, 1)["scores"][0], expected, rtol=1e-4)


@pytest.mark.thorough
def test_kitti_is_measured_as_a_plain_loop_over_its_files_does(tmp_path: Path) -> None:
    kitti(tmp_path / "data")
    settings = Depth.Config(path=str(tmp_path / "data"), layout="kitti", batch_size=2, iterations=2, bins=16)
    given = context(tmp_path / "run", *LARGE_PATCHES)
    run = Depth(settings).run_of(given)
    method = DepthHead(prepare(run).setup, given.checkpoint.backbone).eval()
    assert method.config.crop == (352, 704)
    assert (float(method.depths[0]), float(method.depths[-1])) == (pytest.approx(1e-3), 80.0)
    split = DepthImages(run.data).split("test")
    normal = run.data
    for number, drawn in enumerate((9, 19)):
        pixels, values = street(drawn)
        top, left = pixels.shape[0] - 352, int((pixels.shape[1] - 1216) / 2)
        pixels, values = (array[top : top + 352, left : left + 1216] for array in (pixels, values))
        image = torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)
        image = (image - torch.tensor(normal.mean)[:, None, None]) / torch.tensor(normal.std)[:, None, None]
        with torch.no_grad():
            predicted = (method.predict(image[None])[0] + method.predict(image.flip(2)[None])[0].flip(1)) / 2
        squares, relative, within = 0.0, 0.0, 0
        count = 0
        for row in range(int(0.40810811 * 352), int(0.99189189 * 352)):
            for column in range(int(0.03594771 * 1216), int(0.96405229 * 1216)):
                metres = values[row, column] / 256
                if not 1e-3 < metres < 80:
                    continue
                guess = float(predicted[row, column])
                squares += (guess - metres) ** 2
                relative += abs(guess - metres) / metres
                within += max(guess / metres, metres / guess) < 1.25
                count += 1
        scores = dict(zip(SCORE_NAMES, method.measure(split, number)["scores"][0].tolist(), strict=True))
        assert scores["rmse"] == pytest.approx((squares / count) ** 0.5, rel=1e-5)
        assert scores["abs_rel"] == pytest.approx(relative / count, rel=1e-5)
        assert scores["delta1"] == pytest.approx(within / count, abs=1e-4)


@pytest.mark.thorough
def test_a_training_on_kitti_ends_with_its_numbers(tmp_path: Path) -> None:
    kitti(tmp_path / "data", is_download=True)
    settings = Depth.Config(path=str(tmp_path / "data"), layout="kitti", batch_size=2, iterations=2, bins=8)
    given = context(tmp_path / "run", *LARGE_PATCHES)
    assert Depth.fit_to(settings, NO_IMAGES) == (settings, [])
    metrics = by_name(metrics_of(Depth(settings).measure(given)))
    assert list(metrics) == list(SCORE_NAMES)
    assert 0 < metrics["rmse"].value < 80


def test_areas_may_be_all_and_other_numbers_of_the_layout_may_be_set() -> None:
    nyu, own = (head_settings(Depth.Config(**fields)) for fields in ({}, {"train_area": "all", "max_depth": 5.0}))
    assert (nyu.train_area, nyu.test_area, nyu.crop, nyu.max_depth) == (
        (45, 472, 43, 608),
        (45, 471, 41, 601),
        (416, 544),
        10.0,
    )
    assert (own.train_area, own.max_depth, own.brightness) == (None, 5.0, (0.75, 1.25))
    fields = ("layout=kitti", "test_area=all", "crop_width=352")
    words = ["benchmarks=[depth]", *(f"benchmarks.depth.{field}" for field in fields)]
    chosen = load_config("quickstart", words).benchmarks["depth"]
    kitti_head = head_settings(chosen)  # type: ignore[arg-type]
    assert (kitti_head.test_area, kitti_head.crop, kitti_head.brightness) == (None, (352, 352), (0.9, 1.1))


@pytest.mark.thorough
def test_bad_settings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    kind = resolve("benchmark", "depth")
    assert kind is Depth
    with pytest.raises(ConfigError, match="depth needs path=, the folder of NYU Depth v2 in the layout of BTS"):
        kind.fit_to(Depth.Config(), NO_IMAGES)
    with pytest.raises(ConfigError, match=r"no .*/sync; is the download whole"):
        kind.fit_to(config(tmp_path), NO_IMAGES)
    bts(tmp_path)
    assert kind.fit_to(config(tmp_path), NO_IMAGES) == (config(tmp_path), [])
    with pytest.raises(ConfigError, match=r"train_area=\[0, 40, 0, 40\] goes beyond the first train image, of 32x40"):
        kind.fit_to(config(tmp_path, train_area=(0, 40, 0, 40)), NO_IMAGES)
    with pytest.raises(ConfigError, match="6 training images do not fill a batch of 7; set a smaller batch_size"):
        kind.fit_to(config(tmp_path, batch_size=7), NO_IMAGES)
    with pytest.raises(ConfigError, match=r"min_depth=10.0 and max_depth=10.0; give a larger max_depth"):
        kind.fit_to(config(tmp_path, min_depth=10.0), NO_IMAGES)
    with pytest.raises(ConfigError, match=r"test_area=\[9, 9, 0, 5\] is empty; give first row"):
        kind.fit_to(config(tmp_path, test_area=(9, 9, 0, 5)), NO_IMAGES)
    kitti(tmp_path / "kitti")
    too_low = Depth.Config(path=str(tmp_path / "kitti"), layout="kitti", batch_size=2, test_area=(0, 353, 0, 9))
    with pytest.raises(ConfigError, match="the first test image, of 352x1216 pixels; give an area inside it, or"):
        kind.fit_to(too_low, NO_IMAGES)
    given = context(tmp_path / "run", *RESNET).checkpoint
    kind.check(config(tmp_path), given)
    with pytest.raises(ConfigError, match="'avgpool' is not a map of this backbone"):
        kind.check(config(tmp_path, stages=("avgpool",)), given)
