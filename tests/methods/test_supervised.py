import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.supervised import Supervised
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
LABELS = torch.tensor([2, 0, 5, -1, 2, 1])
SEVERAL = torch.tensor([[1, 0, -1], [1, 1, 0], [0, 0, 0], [-1, -1, -1], [0, 1, 0], [0, 0, 1]])
PLAIN = ("method.label_smoothing=0", "method.mixup=0", "method.cutmix=0")


def small(*words: str, num_classes: int = 6) -> Supervised:
    torch.manual_seed(0)
    network = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    setup = Setup.of(load_config("digits/supervised", [*network, *PLAIN, *words]), 60, num_classes)
    Supervised.check(setup)
    return Supervised(setup, ResNet(setup.config.backbone)).double().eval()


def batch_of(labels: Tensor = LABELS, num_views: int = 1, scale: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = scale * torch.randn(len(labels), num_views, 3, 8, 8, dtype=torch.float64, generator=generator)
    return Batch({"global": images}, torch.arange(len(labels)), labels, torch.tensor([0, 0, 0, 1, 1, 2]))


def log_p(method: Supervised, image: Tensor) -> Tensor:
    return F.log_softmax(method.classifier(method.backbone(image[None])), dim=1)[0]


@pytest.mark.thorough
def test_loss_is_the_mean_negative_log_likelihood_of_the_labels() -> None:
    method, batch = small(), batch_of(num_views=2)
    total = torch.zeros((), dtype=torch.float64)
    for row, label in enumerate(LABELS.tolist()):
        for view in batch.views["global"][row]:
            total -= log_p(method, view)[label] if label >= 0 else 0
    out = method(batch, STEP)
    torch.testing.assert_close(out.loss, total / 12, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == Supervised.logged


def test_a_smoothed_label_is_shared_among_all_classes() -> None:
    method, batch = small("method.label_smoothing=0.3"), batch_of()
    total = torch.zeros((), dtype=torch.float64)
    for row, label in enumerate(LABELS.tolist()):
        scores = log_p(method, batch.views["global"][row, 0])
        total -= 0.7 * scores[label] + 0.3 * scores.mean() if label >= 0 else 0
    torch.testing.assert_close(method(batch, STEP).loss, total / 6, rtol=1e-9, atol=0)


@pytest.mark.parametrize("mix_by", ["image", "batch"])
def test_mixed_images_have_the_labels_of_both_in_their_shares(mix_by: str) -> None:
    method, batch = small("method.mixup=1.0", "method.mix_p=1", f"method.mix_by={mix_by}"), batch_of()
    slot = "supervised.mix"
    random = batch.random(slot) if mix_by == "image" else batch.shared(slot, 6)
    random.bernoulli(1.0), random.bernoulli(0.0)  # whether to mix, and how
    shares = random.uniform()  # of Beta(1, 1)
    total = torch.zeros((), dtype=torch.float64)
    for row, (partner, share) in enumerate(zip([1, 2, 0, 4, 3, 5], shares.tolist(), strict=True)):
        own, other = batch.views["global"][row, 0], batch.views["global"][partner, 0]
        scores = log_p(method, share * own + (1 - share) * other)
        for label, weight in ((LABELS[row], share), (LABELS[partner], 1 - share)):
            total -= weight * scores[label] if label >= 0 else 0
    torch.testing.assert_close(method(batch, STEP).loss, total / 6, rtol=1e-9, atol=0)
    assert (len(set(shares)) == 1) == (mix_by == "batch")


def test_each_mix_acts_alone_where_the_other_is_0() -> None:
    batch = replace(batch_of(), lane=torch.zeros(6, dtype=torch.int64))
    seen: list[Tensor] = []
    for word in ("method.mixup=1.0", "method.cutmix=1.0"):
        method = small(word, "method.mix_p=1")
        method.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        method(batch, STEP)
    own, partner = batch.views["global"][:, 0], batch.views["global"][:, 0].roll(-1, 0)
    blended, pasted = ((images == own) | (images == partner) for images in seen)
    assert not blended.any()
    assert pasted.all()
    assert not torch.equal(seen[1], own)


def test_several_labels_of_an_image_are_told_one_by_one() -> None:
    method, batch = small(num_classes=3), batch_of(SEVERAL)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(6):
        logits = method.classifier(method.backbone(batch.views["global"][row]))[0]
        for score, label in zip(logits, SEVERAL[row].tolist(), strict=True):
            total -= {1: F.logsigmoid(score), 0: F.logsigmoid(-score), -1: 0 * score}[label]
    torch.testing.assert_close(method(batch, STEP).loss, total / 18, rtol=1e-9, atol=0)
    mixed = small("method.mixup=1.0", "method.mix_p=1", num_classes=3)(batch, STEP).loss
    assert mixed.isfinite()
    assert mixed != method(batch, STEP).loss


def test_evaluation_tells_of_each_image_whether_its_class_is_among_the_highest() -> None:
    method = small()
    torch.nn.init.zeros_(method.classifier.weight)
    method.classifier.bias.data = torch.tensor([5.0, 4.0, 6.0, 3.0, 2.0, 1.0]).double()
    found = method.evaluation_step(batch_of(num_views=2))
    assert tuple(found) == Supervised.evaluated
    nan = pytest.approx(math.nan, nan_ok=True)  # of an image without a label
    assert found["top1"].tolist() == [100, 0, 0, nan, 100, 0]
    assert found["top5"].tolist() == [100, 100, 0, nan, 100, 100]
    assert method(batch_of(), STEP).metrics["top1"] == pytest.approx(100 * 2 / 5)
    assert method(batch_of(torch.full((6,), -1)), STEP).metrics["top1"] == 0
    method = small(num_classes=3)
    torch.nn.init.zeros_(method.classifier.weight)
    method.classifier.bias.data = torch.tensor([1.0, 2.0, 0.0]).double()
    assert method.evaluation_step(batch_of(SEVERAL))["top1"].tolist() == [0, 100, nan, nan, 100, 0]


def test_collapsed_and_huge_features_leave_the_loss_finite() -> None:
    method = small("method.mixup=1.0", "method.cutmix=1.0").train()
    for scale in (0.0, 1e6):
        out = method(batch_of(scale=scale), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def setup_of(num_classes: int, *words: str) -> Setup:
    return Setup.of(load_config("digits/supervised", ["train.batch_size=6", *words]), 60, num_classes)


def test_images_without_classes_are_refused() -> None:
    for num_classes in (0, 1):
        with pytest.raises(ConfigError, match=rf"data.name=digits has {num_classes} classes .* data.label_type"):
            Supervised.check(setup_of(num_classes))
    Supervised.check(setup_of(2))


def test_views_are_the_papers() -> None:
    config: Any = Supervised.Config()
    (view,) = config.views.recipe().groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert (config.label_smoothing, config.mixup, config.cutmix) == (0, 0, 0)
