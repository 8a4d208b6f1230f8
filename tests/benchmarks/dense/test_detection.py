"""The detector end to end on generated scenes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.transforms.v2 import InterpolationMode

from raysl.benchmarks.benchmark import Context, Labelled, by_name
from raysl.benchmarks.dense import detector as dense_detector
from raysl.benchmarks.dense import maps as dense_maps
from raysl.benchmarks.dense.average_precision import Detected, parse_detections
from raysl.benchmarks.dense.boxes import BoxImages, BoxSplit, coco_boxes, voc_boxes
from raysl.benchmarks.dense.coco_scores import tools
from raysl.benchmarks.dense.detector import Detector
from raysl.benchmarks.dense.maps import Pyramid
from raysl.benchmarks.dense.pictures import DetectorInput, drawn_mask
from raysl.benchmarks.detection import Detection
from raysl.benchmarks.metric import metrics_of
from raysl.benchmarks.training_runs import trained
from raysl.components import resolve
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.optim.adam import AdamW
from raysl.optim.sgd import SGD
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train.prepare import prepare
from raysl.transforms.functional import Interpolation, normalize
from tests.benchmarks.dense.scenes import RESNET, VIT, context, network
from tests.benchmarks.dense.test_boxes import coco, voc
from tests.benchmarks.dense.test_crops import random_of

NO_IMAGES = Labelled(0, 0, (), None)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps and heads of few channels, for speed."""
    monkeypatch.setattr(dense_detector, "WIDTH", 16)
    monkeypatch.setattr(dense_maps, "WIDTH", 16)


def config(root: Path, **fields: Any) -> Detection.Config:
    """Small and quick."""
    small = {"short_sides": (56, 64), "long_side": 96, "iterations": 2, "batch_size": 3, "warmup": Duration(0, "st")}
    return Detection.Config(path=str(root), **(small | fields))


def seeing_of(given: Context, has_masks: bool = False, sides: tuple[int, ...] = (64,)) -> DetectorInput:
    return DetectorInput(given.data, sides, 1000, 32, has_masks)


def detector(given: Context, masks: bool = False, **fields: Any) -> Detector:
    """A fresh one of 3 classes, in training mode."""
    settings = Detector.Config(masks=masks, short_sides=(64,), long_side=1000, **fields)
    run = replace(given.checkpoint.config, method=settings)
    return Detector(Setup.of(run, 1000, 3), given.network)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", [RESNET, VIT])
@pytest.mark.parametrize("layout", ["voc", "coco"])
def test_it_runs_on_both_layouts_and_both_kinds_of_networks(
    tmp_path: Path, overrides: tuple[str, ...], layout: Any
) -> None:
    {"voc": voc, "coco": coco}[layout](tmp_path / "data", num=4)
    settings = config(tmp_path / "data", layout=layout, masks=layout == "coco")
    assert Detection.fit_to(settings, NO_IMAGES) == (settings, [])
    given = context(tmp_path / "run", *overrides)
    before = {name: value.clone() for name, value in given.network.state_dict().items()}
    found = Detection(settings).measure(given)
    metrics = by_name(metrics_of(found))
    assert list(metrics) == Detection.metrics(settings, 0)
    assert all(0 <= metric.value <= 100 for metric in metrics.values())
    names = {"aeroplane", "bicycle", "bird"} if layout == "voc" else {"kind0", "kind1", "kind2"}
    assert all(set(values) <= names for values in found.figures["per_class"].values())
    assert all(torch.equal(before[name], value) for name, value in given.network.state_dict().items())
    (run,) = given.folder.names()
    assert not [name for name in given.folder.child(run).names() if name.startswith("checkpoint")]


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["voc", "coco"])
def test_a_perfect_detector_has_100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    {"voc": voc, "coco": coco}[layout](tmp_path / "data")
    settings = config(tmp_path / "data", layout=layout, masks=layout == "coco", batch_size=1)
    given = context(tmp_path / "run")
    split = BoxImages(Detection.data(settings)).split("test")
    if layout == "coco":  # the crowd is no object
        split = BoxSplit(split.images, tuple(one.take(~one.is_apart) for one in split.objects), split.classes)
    method, number = detector(given, masks=settings.masks).eval(), 0

    def found(batch: Batch) -> list[dict[str, torch.Tensor]]:
        """What the image has, in pixels of the batch."""
        picture = seeing_of(given)._seen(split.image(number), split.objects[number], 64, False)
        assert batch.extras["image.size"].tolist() == [list(picture.image.shape[1:])]
        num = len(picture.labels)
        masks = {"masks": torch.ones(num, 1, 28, 28)} if settings.masks else {}
        return [{"boxes": picture.boxes, "scores": torch.ones(num), "labels": picture.labels, **masks}]

    monkeypatch.setattr(method, "detect_batch", found)
    images = []
    for number in range(len(split)):
        images.append(method.measure(split, number))
    detections, sizes = parse_detections({name: torch.cat([image[name] for image in images]) for name in images[0]})
    assert sizes == [(32, 40)] * len(split)
    results = Detection(settings).scores(detections, split, sizes)
    assert [metric.value for metric in results.metrics] == pytest.approx([100] * len(results.metrics), abs=1e-6)


def test_detections_come_back_from_tensors(tmp_path: Path) -> None:
    runs = tools().mask.encode(np.asfortranarray(np.eye(4, 6, dtype=np.uint8)))
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    one = np.ones((1, 4), np.float32), np.ones(1, np.float32), np.full(1, 3)
    for masks in ((), (runs,)):
        images = [Detected(*none), Detected(*one, masks=masks), Detected(*none)]
        rows = [image.tensors((4, 6)) for image in images]
        detections, sizes = parse_detections({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
        assert sizes == [(4, 6)] * 3
        assert [len(image.scores) for image in detections] == [0, 1, 0]
        assert detections[1].masks == masks
        assert detections[1].labels.tolist() == [3]


@pytest.mark.thorough
def test_a_training_that_was_ended_goes_on_and_ends_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "data")
    settings = config(tmp_path / "data", iterations=4, checkpoint_every=Duration(2, "st"), lr=0.01)
    monkeypatch.setattr(trained, "remove", lambda *_: None)
    step, steps = Detector.training_step, []

    def failing(method: Detector, batch: Any, now: Any) -> Any:
        steps.append(now.index)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(method, batch, now)

    Detection(settings).measure(context(tmp_path / "whole"))
    monkeypatch.setattr(Detector, "training_step", failing)
    given = context(tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        Detection(settings).measure(given)
    Detection(settings).measure(given)
    assert steps == [0, 1, 2, 3, 2, 3]
    whole, parts = (
        torch.load(sorted((tmp_path / name).glob("work/*/checkpoint_*/train_state.pt"))[-1], weights_only=True)
        for name in ("whole", "parts")
    )
    assert whole["step"] == parts["step"] == 4
    assert all(torch.equal(value, parts["method"][name]) for name, value in whole["method"].items())


@pytest.mark.thorough
def test_what_was_measured_is_not_trained_again(tmp_path: Path, starts: list[int]) -> None:
    voc(tmp_path / "data")
    given, benchmark = context(tmp_path / "run"), Detection(config(tmp_path / "data"))
    assert benchmark.measure(given) == benchmark.measure(given)
    assert starts == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "lr", "least"),
    [(("backbone.num_stages=2", "backbone.width=16", "backbone.depth=10", "backbone.stem=imagenet"), 0.16, 80),
     (VIT, 8e-3, 35)],
)  # fmt: skip
def test_it_learns_where_coloured_rectangles_are(
    tmp_path: Path, overrides: tuple[str, ...], lr: float, least: float
) -> None:
    voc(tmp_path / "data", num=16)
    settings = config(tmp_path / "data", iterations=120, batch_size=4, lr=lr, short_sides=(64,))
    found = by_name(metrics_of(Detection(settings).measure(context(tmp_path / "run", *overrides))))
    assert found["ap50"].value > least


@pytest.mark.thorough
def test_a_picture_and_its_boxes_and_masks_show_the_same(tmp_path: Path) -> None:
    split = coco_boxes(coco(tmp_path), "train2017", with_segments=True).trainable(with_apart=False)
    seeing = seeing_of(context(tmp_path / "run"), has_masks=True, sides=(48, 64))
    mirrored, sizes = 0, set()
    plain = {side: seeing._seen(split.image(1), split.objects[1], side, True) for side in (48, 64)}
    for epoch in range(30):
        picture = seeing.example(split, 1, random_of(1, epoch))
        own = plain[picture.image.shape[1]]
        sizes.add(picture.image.shape[1])
        mirrored += not torch.equal(picture.image, own.image)
        assert picture.masks is not None
        for box, mask in zip(picture.boxes, picture.masks, strict=True):
            left, top, right, bottom = box.round().int().tolist()
            inside = mask[top:bottom, left:right]
            assert inside.float().mean() > 0.85
            assert mask.sum() < 1.15 * (right - left) * (bottom - top)
            colors = picture.image[:, top + 3 : bottom - 3, left + 3 : right - 3]
            assert colors.std(dim=(1, 2)).max() < 0.4  # the object alone
    assert sizes == {48, 64}
    assert 5 < mirrored < 25


def test_masks_of_polygons_and_of_run_lengths_are_drawn_alike() -> None:
    polygon = [[5, 5, 25, 5, 25, 15, 5, 15]]
    mask = drawn_mask(polygon, 20, 30, (20, 30))
    assert int(mask.sum()) == 200
    packed = tools().mask.encode(np.asfortranarray(mask.numpy()))
    columns = mask.numpy().flatten(order="F")
    changes = np.flatnonzero(np.diff(columns)) + 1
    counts = np.diff([0, *changes, len(columns)]).tolist()
    for runs in (packed, {"counts": counts, "size": [20, 30]}):
        assert torch.equal(drawn_mask(runs, 20, 30, (20, 30)), mask)
        twice = drawn_mask(runs, 20, 30, (40, 60))
        assert torch.equal(twice, mask.repeat_interleave(2, 0).repeat_interleave(2, 1))
    assert int(drawn_mask(polygon, 20, 30, (40, 60)).sum()) == 800


@pytest.mark.thorough
def test_batches_are_filled_up_and_have_the_objects_of_each_image(tmp_path: Path) -> None:
    given = context(tmp_path / "run")
    split = coco_boxes(coco(tmp_path), "train2017", with_segments=True).trainable(with_apart=False)
    seeing = seeing_of(given, has_masks=True)
    objects = [split.objects[0], split.objects[1].take(np.array([True, False]))]
    pictures = [
        seeing._seen(split.image(n), own, side, True)
        for n, (own, side) in enumerate(zip(objects, (64, 32), strict=True))
    ]
    batch = seeing.collate(pictures, torch.arange(2))
    assert batch.views["image"].shape == (2, 1, 3, 64, 96)
    assert batch.extras["image.size"].tolist() == [[64, 80], [32, 40]]
    assert batch.extras["image.labels"][1].tolist() == [int(objects[1].labels[0]), -1]
    assert (batch.views["image"][1, 0, :, 32:] == 0).all()
    assert (batch.views["image"][1, 0, :, :, 40:] == 0).all()
    method = detector(given, masks=True)
    targets = [method._target(batch, row) for row in range(2)]
    for target, picture in zip(targets, pictures, strict=True):
        assert torch.equal(target["boxes"], picture.boxes)
        assert torch.equal(target["labels"], picture.labels + 1)
        assert target["masks"].shape == (len(picture.labels), 64, 96)


def test_levels_are_the_strides_of_the_network() -> None:
    images = torch.randn(1, 3, 64, 96)
    _, resnet = network("backbone.num_stages=4", "backbone.width=8", "backbone.depth=10", "backbone.stem=imagenet")
    _, vit = network(*VIT)
    for backbone, strides in ((resnet, [4, 8, 16, 32, 64]), (vit, [1, 2, 4, 8, 16])):
        pyramid = Pyramid(backbone, None)
        maps = pyramid(backbone, images)
        assert pyramid.strides == strides
        assert [tuple(one.shape) for one in maps.values()] == [
            (1, 16, -(-64 // stride), -(-96 // stride)) for stride in strides
        ]
    assert [stage.name for stage in Pyramid(resnet, None).stages] == ["res2", "res3", "res4", "res5"]


@pytest.mark.thorough
def test_normalisation_is_trained_or_stays_as_pre_trained(tmp_path: Path) -> None:
    split = voc_boxes(voc(tmp_path), "trainval").trainable(with_apart=True)
    for norm in ("sync", "frozen"):
        given = context(tmp_path / "run")
        method = detector(given, norm=norm, freeze=("stem",)).train()
        norms = [module for module in method.backbone.modules() if isinstance(module, _BatchNorm)]
        means = [module.running_mean.clone() for module in norms]  # type: ignore[union-attr]
        seeing = seeing_of(given)
        pictures = [seeing.example(split, n, random_of(n)) for n in range(2)]
        batch = seeing.collate([replace(one, labels=one.labels % 3) for one in pictures], torch.arange(2))
        out = method(batch, Step(0, 1, 1))
        assert set(out.metrics) == set(Detector.logged_by(method.config))
        assert out.loss.item() == pytest.approx(sum(value.item() for value in out.metrics.values()), rel=1e-5)
        out.loss.backward()
        moved = [not torch.equal(a, b.running_mean) for a, b in zip(means, norms, strict=True)]  # type: ignore[arg-type]
        assert moved[0] is False  # of the stem
        assert set(moved[1:]) == {norm == "sync"}
        trained = {name for name, weight in method.backbone.named_parameters() if weight.grad is not None}
        assert "layer1.0.conv1.weight" in trained
        assert "conv1.weight" not in trained
        assert ("layer1.0.bn1.weight" in trained) == (norm == "sync")
        in_pyramid = any(isinstance(module, nn.BatchNorm2d) for module in method.pyramid.modules())
        assert in_pyramid == (norm == "sync")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_measured_images_are_resized_as_the_settings_have_it(tmp_path: Path, interpolation: Interpolation) -> None:
    image = torch.randint(0, 256, (3, 40, 50), generator=torch.Generator().manual_seed(0)).byte()
    given = context(tmp_path / "run")
    seeing = replace(seeing_of(given), data=replace(given.data, eval_interpolation=interpolation))
    resized = vision.resize(image, [64, 80], InterpolationMode(interpolation), antialias=True)
    assert torch.equal(seeing.for_measuring(image).image, normalize(resized[None], given.data.mean, given.data.std)[0])


@pytest.mark.thorough
def test_boxes_stay_in_fp32_where_the_backbone_computes_in_bf16(tmp_path: Path) -> None:
    split = voc_boxes(voc(tmp_path), "trainval").trainable(with_apart=True)
    given = context(tmp_path / "run")
    method, seeing = detector(given), seeing_of(given)
    picture = seeing.example(split, 0, random_of(0))
    batch = seeing.collate([replace(picture, labels=picture.labels % 3)] * 2, torch.arange(2))
    inner: list[torch.dtype] = []
    seen: list[torch.dtype] = []
    method.backbone.layer1.register_forward_hook(lambda *args: inner.append(args[-1].dtype))  # type: ignore[operator,union-attr]
    method.heads.register_forward_pre_hook(lambda _, given: seen.extend(boxes.dtype for boxes in given[1]))
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch, Step(0, 1, 1))
    assert inner == [torch.bfloat16]
    assert set(seen) == {torch.float32}
    assert out.loss.dtype == torch.float32


def test_schedules_are_the_papers() -> None:
    pascal, many = (Detection(Detection.Config(layout=layout)).training_on(False) for layout in ("voc", "coco"))
    assert (pascal.iterations, Detection.Config().batch_size, pascal.optim.lr) == (12_500, 16, 0.02)
    assert [point.steps(12_500, 300) for point in pascal.optim.decay_at] == [9_500]
    assert many.iterations == 90_000
    assert [point.steps(90_000, 300) for point in many.optim.decay_at] == [60_000, 80_000]
    assert isinstance(many.optim, SGD.Config)
    vit = Detection(Detection.Config(layout="coco")).training_on(True).optim
    assert isinstance(vit, AdamW.Config)
    assert (vit.lr, vit.weight_decay) == (1e-4, 0.1)
    training = Detection(Detection.Config(optimizer="sgd", lr=0.5, decay_at=(), iterations=7)).training_on(True)
    assert (training.optim.name, training.optim.lr, training.optim.decay_at, training.iterations) == ("sgd", 0.5, (), 7)


@pytest.mark.thorough
def test_a_run_ends_with_its_last_update_inside_an_epoch(tmp_path: Path) -> None:
    voc(tmp_path / "data", num=6)
    run = Detection(config(tmp_path / "data", iterations=5)).run_of(context(tmp_path / "run"))
    plan = prepare(run).setup.plan
    assert (run.train.epochs, plan.epoch_len, plan.total_steps) == (3, 2, 5)


def test_bad_settings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    kind = resolve("benchmark", "detection")
    assert kind is Detection
    voc(tmp_path, num=3)
    for settings, message in (
        (Detection.Config(), "detection needs path="),
        (config(tmp_path, masks=True), "masks=true needs layout=coco"),
        (config(tmp_path, layout="coco"), r"no .*instances_train2017.json"),
        (config(tmp_path, layout="coco", more="x"), "more=.*x is for another year of VOC"),
        (config(tmp_path, batch_size=4), "3 training images with objects do not fill a batch of 4"),
        (config(tmp_path, workers=4), "batch_size=3 leaves some of 4 workers without images"),
        (config(tmp_path, more=str(tmp_path / "no")), r"no .*trainval.txt"),
    ):
        with pytest.raises(ConfigError, match=message):
            kind.fit_to(settings, NO_IMAGES)
    with pytest.raises(ConfigError, match="no stage 'res9'"):
        kind.check(config(tmp_path, freeze=("res9",)), context(tmp_path / "run").checkpoint)
