from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.supcon import PolicyCrops, SupCon
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import prepare
from raysl.transforms import AutoAugment, HorizontalFlip
from tests.losses.test_sup_con import slow_sup_con

STEP = Step(0, 10, 5)


def setup_of(batch_size: int = 6, num_classes: int = 4, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16", "method.output_dim=8"]
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/supcon", [*small, f"train.batch_size={batch_size}", *words]), 6, num_classes)


def small_supcon(**fields: Any) -> SupCon:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return SupCon(setup, ResNet(setup.config.backbone)).double()


def batch_of(*labels: int, num_local: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {"global": torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=generator)}
    if num_local:
        views["local"] = torch.randn(6, num_local, 3, 6, 6, dtype=torch.float64, generator=generator)
    return Batch(views, torch.arange(6), torch.tensor(labels))


def test_loss_is_equation_2_on_the_projected_views() -> None:
    method, batch = small_supcon(temperature=0.2), batch_of(2, 0, -1, 2, -1, 2)
    out = method(batch, STEP)
    z = method.projector(method.backbone(batch.views["global"].flatten(0, 1))).unflatten(0, (6, 2))
    assert out.loss.item() == pytest.approx(slow_sup_con(z.detach(), list(range(6)), batch.label, 0.2), rel=1e-9)
    assert tuple(out.metrics) == SupCon.logged


def test_small_views_are_positives_too() -> None:
    method, batch = small_supcon(temperature=0.2).eval(), batch_of(2, 0, -1, 2, -1, 2, num_local=2)
    groups = [batch.views["global"], batch.views["local"]]
    z = torch.cat([method.projector(method.backbone(g.flatten(0, 1))).unflatten(0, g.shape[:2]) for g in groups], dim=1)
    expected = slow_sup_con(z.detach(), list(range(6)), batch.label, 0.2)
    assert method(batch, STEP).loss.item() == pytest.approx(expected, rel=1e-9)


def test_labels_change_the_loss_and_their_names_do_not() -> None:
    method = small_supcon()
    pairs, renamed, alone = (
        method(batch_of(*labels), STEP).loss for labels in ((0, 0, 1, 1, 2, 2), (9, 9, 0, 0, 5, 5), (0, 1, 2, 3, 4, 5))
    )
    assert pairs == renamed
    assert abs(pairs - alone) > 0.01


def test_check_refuses_data_without_classes() -> None:
    SupCon.check(setup_of(num_classes=1))
    with pytest.raises(ConfigError, match="the 6 training images have no classes, and SupCon"):
        SupCon.check(setup_of(num_classes=0))
    with pytest.raises(ConfigError, match="have no classes"):
        prepare(load_config("digits/supcon", ["data.label_type=zero", "benchmarks=[]"]))


def test_check_refuses_a_single_view() -> None:
    with pytest.raises(ConfigError, match="is 0; SupCon pulls views"):
        SupCon.check(setup_of(**{"views.num": 1}))


def test_views_are_crops_under_auto_augment() -> None:
    first, second = SupCon.Config().views.recipe().groups["global"]
    assert first == second
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    assert first.transforms == (HorizontalFlip(p=0.5), AutoAugment(policy="imagenet"))
    assert PolicyCrops(flip=0, jitter_p=0, grayscale_p=0, blur_p=0).recipe().groups["global"][0].transforms == ()


def test_the_papers_constants() -> None:
    config = SupCon.Config()
    assert (config.temperature, config.hidden_dim, config.output_dim) == (0.1, 2048, 128)
