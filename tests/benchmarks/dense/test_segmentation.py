"""The linear segmentation end to end on generated scenes."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.benchmarks.benchmark import Labelled, by_name
from raysl.benchmarks.dense.maps import chosen_stages, map_stages, maps_of
from raysl.benchmarks.dense.masks import MaskImages
from raysl.benchmarks.dense.segmenter import Segmenter
from raysl.benchmarks.metric import metrics_of
from raysl.benchmarks.segmentation import Segmentation, crop_side
from raysl.benchmarks.training_runs import run
from raysl.components import resolve
from raysl.errors import ConfigError
from raysl.nn.pooling import RawPixels
from raysl.schedule import Duration, Step
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.benchmarks.dense.scenes import RESNET, VIT, context, network
from tests.benchmarks.dense.test_crops import random_of
from tests.benchmarks.dense.test_masks import ade, cityscapes, voc

NO_IMAGES = Labelled(0, 0, (), None)


def config(root: Path, **fields: Any) -> Segmentation.Config:
    """Small and quick."""
    small = {"short_side": 32, "crop": 32, "iterations": 30, "batch_size": 4, "lr": 0.05, "warmup": Duration(2, "st")}
    return Segmentation.Config(path=str(root), **(small | fields))


@pytest.mark.thorough
@pytest.mark.parametrize(("overrides", "least"), [((*RESNET, "backbone.width=24"), 60), (VIT, 60)])
def test_a_head_learns_classes_by_their_colours(tmp_path: Path, overrides: tuple[str, ...], least: float) -> None:
    voc(tmp_path / "data", num=8)
    given = context(tmp_path / "run", *overrides)
    before = {name: value.clone() for name, value in given.network.state_dict().items()}
    found = Segmentation(config(tmp_path / "data", iterations=60, distort=False)).measure(given)
    metrics = by_name(metrics_of(found))
    assert list(metrics) == Segmentation.metrics(config(tmp_path), 0)
    assert metrics["miou"].value > least  # of 4 classes; the background alone has less than 20
    assert metrics["pixel_accuracy"].value > metrics["miou"].value
    (per_class,) = found.figures["per_class"].values()
    assert set(per_class) == {"background", "aeroplane", "bicycle", "bird"}
    assert sum(per_class.values()) / 4 == pytest.approx(metrics["miou"].value)
    assert all(torch.equal(before[name], value) for name, value in given.network.state_dict().items())
    (run,) = given.folder.names()
    assert not [name for name in given.folder.child(run).names() if name.startswith("checkpoint")]


@pytest.mark.thorough
def test_ade20k_is_measured_on_150_classes(tmp_path: Path) -> None:
    ade(tmp_path / "data")
    settings = config(tmp_path / "data", layout="ade20k", batch_size=3, iterations=2)
    found = Segmentation(settings).measure(context(tmp_path / "run"))
    assert 0 <= metrics_of(found)[0].value <= 100
    assert all(name.startswith("class ") for name in next(iter(found.figures["per_class"].values())))


@pytest.mark.thorough
def test_cityscapes_counts_pixels_of_train_ids_as_a_plain_loop_does(tmp_path: Path) -> None:
    cityscapes(tmp_path / "data", num=2)
    settings = config(tmp_path / "data", layout="cityscapes", batch_size=2, iterations=2)
    benchmark, given = Segmentation(settings), context(tmp_path / "run")
    found = benchmark.measure(given)
    metrics = by_name(metrics_of(found))
    split = MaskImages(benchmark.data(settings)).required("test")
    assert len(split.classes) == 19
    # the trained head is gone with its run, so the same one is trained again beside it
    predictions: list[torch.Tensor] = []
    predict = Segmenter.predict

    def recorded(method: Segmenter, image: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        predictions.append(predict(method, image, size))
        return predictions[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segmenter, "predict", recorded)
        again = by_name(metrics_of(Segmentation(settings).measure(context(tmp_path / "again"))))
    assert again["miou"].value == metrics["miou"].value
    hits, union = [0] * 19, [0] * 19
    for number, predicted in enumerate(predictions):
        mask = split.target(number)
        for row in range(mask.shape[0]):
            for column in range(mask.shape[1]):
                label, guess = int(mask[row, column]), int(predicted[row, column])
                if label == 255:
                    continue
                hits[label] += label == guess
                union[label] += 1
                union[guess] += label != guess
    ious = [100 * hit / total for hit, total in zip(hits, union, strict=True) if total]
    assert metrics["miou"].value == pytest.approx(sum(ious) / len(ious))


@pytest.mark.thorough
def test_a_training_that_was_ended_goes_on_and_ends_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "data")
    settings = config(tmp_path / "data", iterations=6, checkpoint_every=Duration(2, "st"))
    whole = Segmentation(settings).measure(context(tmp_path / "whole"))
    given = context(tmp_path / "parts")
    steps = []
    step = Segmenter.training_step

    def failing(method: Segmenter, batch: Any, now: Any) -> Any:
        steps.append(now.index)
        if len(steps) == 6:
            raise KeyboardInterrupt
        return step(method, batch, now)

    monkeypatch.setattr(Segmenter, "training_step", failing)
    with pytest.raises(KeyboardInterrupt):
        Segmentation(settings).measure(given)
    assert given.folder.names() == [Segmentation(settings).run_of(given).name]
    assert Segmentation(replace(settings, lr=0.02)).run_of(given).name != given.folder.names()[0]
    parts = Segmentation(settings).measure(given)
    assert steps == [0, 1, 2, 3, 4, 5, 4, 5]
    assert parts == whole


@pytest.mark.thorough
def test_a_training_on_files_that_were_replaced_or_of_other_code_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voc(tmp_path / "data")
    settings, given = config(tmp_path / "data"), context(tmp_path / "run")
    before = Segmentation(settings).run_of(given).name
    assert Segmentation(settings).run_of(given).name == before
    mask = next((tmp_path / "data" / "SegmentationClass").iterdir())
    written = mask.stat().st_mtime_ns + 10**9
    os.utime(mask, ns=(written, written))
    replaced = Segmentation(settings).run_of(given).name
    assert replaced != before
    monkeypatch.setattr(run, "code_of", lambda kind, *_: f"another {kind.__name__}")
    assert Segmentation(settings).run_of(given).name not in (before, replaced)


@pytest.mark.thorough
def test_stages_that_are_no_maps_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    given = context(tmp_path / "run")
    with pytest.raises(ConfigError, match="'avgpool' is not a map of this backbone; choose from conv1, stem, res2"):
        Segmentation.check(config(tmp_path, stages=("avgpool",)), given.checkpoint)


@pytest.mark.thorough
def test_checkpoints_of_other_weights_are_not_taken(tmp_path: Path) -> None:
    voc(tmp_path / "data")
    benchmark = Segmentation(config(tmp_path / "data"))
    given, other = (context(tmp_path / f"run{seed}", seed=seed) for seed in (0, 1))
    at_its_address = replace(given, checkpoint=replace(other.checkpoint, uri=given.checkpoint.uri))
    assert benchmark.run_of(given).name != benchmark.run_of(at_its_address).name


@pytest.mark.thorough
def test_an_untrained_rival_begins_with_the_initial_weights_of_the_seed(tmp_path: Path) -> None:
    voc(tmp_path / "data")
    given = context(tmp_path / "run", seed=5)
    benchmark = Segmentation(config(tmp_path / "data"))
    trained, rival = (
        TrainState.create(prepare(benchmark.run_of(replace(given, side=side))).setup).method
        for side in ("trained", "untrained")
    )
    _, initial = network()
    for method, backbone in ((trained, given.network), (rival, initial)):
        own = method.backbone.state_dict()
        assert all(torch.equal(own[name], value) for name, value in backbone.state_dict().items())
    assert torch.equal(trained.classifier.weight, rival.classifier.weight)  # type: ignore[arg-type,union-attr]


def test_maps_are_the_stages_with_a_place_for_each_part_of_the_image() -> None:
    _, resnet = network(*RESNET)
    assert [(stage.name, stage.width, stage.stride) for stage in map_stages(resnet)] == [
        ("conv1", 8, 1), ("stem", 8, 1), ("res2", 8, 1), ("res3", 16, 2),
    ]  # fmt: skip
    _, vit = network(*VIT)
    assert [(stage.name, stage.stride) for stage in map_stages(vit)] == [("block1", 4), ("block2", 4), ("norm", 4)]
    images = torch.randn(2, 3, 16, 24)
    (found,) = maps_of(vit, images, chosen_stages(vit, ()))
    assert found.shape == (2, 24, 4, 6)
    assert torch.equal(found[1, :, 2, 3], vit.tokens(images)[1, 1 + 2 * 6 + 3])
    with pytest.raises(ConfigError, match="'avgpool' is not a map of this backbone; choose from conv1, stem, res2"):
        chosen_stages(resnet, ["avgpool"])
    with pytest.raises(ConfigError, match="RawPixels has no stage with a place"):
        map_stages(RawPixels())


@pytest.mark.thorough
def test_stages_go_side_by_side_and_the_loss_is_that_of_the_pixels(tmp_path: Path) -> None:
    voc(tmp_path / "data")
    settings = config(tmp_path / "data", stages=("res2", "res3"), batch_norm=False, iterations=2)
    given = context(tmp_path / "run")
    setup = prepare(Segmentation(settings).run_of(given)).setup
    method = Segmenter(setup, network()[1])
    assert method.classifier.weight.shape == (21, 24, 1, 1)
    assert [name for name, weight in method.named_parameters() if weight.requires_grad] == [
        "classifier.weight", "classifier.bias",
    ]  # fmt: skip
    train, recipe = MaskImages(setup.config.data).split("train"), Segmenter.targets(setup)
    samples = [recipe.example(train, number, random_of(number)) for number in range(3)]
    batch = recipe.collate(samples, torch.arange(3))
    out = method(batch, Step(0, 1, 1))
    shares = method.scores(batch.views["image"][:, 0]).log_softmax(dim=1).detach()
    total = sum(
        -float(shares[n, int(mask[y, x]), y, x])
        for n, (_, mask, _) in enumerate(samples) for y in range(32) for x in range(32) if mask[y, x] != 255
    )  # fmt: skip
    assert out.loss.item() == pytest.approx(total / (3 * 32 * 32), rel=1e-4)
    beyond = ~torch.stack([sample[2] for sample in samples])
    assert (batch.views["image"][:, 0].abs().sum(dim=1)[beyond] == 0).all()


@pytest.mark.thorough
def test_bad_settings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    kind = resolve("benchmark", "segmentation")
    assert kind is Segmentation
    with pytest.raises(ConfigError, match="segmentation needs path="):
        kind.fit_to(Segmentation.Config(), NO_IMAGES)
    with pytest.raises(ConfigError, match=r"no .*train.txt"):
        kind.fit_to(config(tmp_path), NO_IMAGES)
    voc(tmp_path)
    assert kind.fit_to(config(tmp_path), NO_IMAGES) == (config(tmp_path), [])
    with pytest.raises(ConfigError, match="4 training images do not fill a batch of 5; set a smaller batch_size"):
        kind.fit_to(config(tmp_path, batch_size=5), NO_IMAGES)
    with pytest.raises(ConfigError, match="batch_size=4 leaves some of 5 workers without images"):
        kind.fit_to(config(tmp_path, workers=5), NO_IMAGES)
    with pytest.raises(ConfigError, match="crop=33 over images of short_side=32; give crop=32 or less"):
        kind.fit_to(config(tmp_path, crop=33), NO_IMAGES)
    vit = context(tmp_path / "run", *VIT)
    with pytest.raises(ConfigError, match="crop=30 is not a multiple of the backbone's patch_size=4; try crop=28"):
        kind.check(config(tmp_path, crop=30), vit.checkpoint)
    assert crop_side(config(tmp_path, crop=None, short_side=31), vit.checkpoint.backbone) == 28
