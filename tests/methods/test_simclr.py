from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter, GaussianBlur

STEP = Step(0, 10, 5)


def setup_of(batch_size: int = 6, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16", "method.output_dim=8"]
    batch = f"train.batch_size={batch_size}"
    return Setup.of(load_config("quickstart", [*small, batch, "method.projector_norm=false", *words]), 6)


def small_simclr(**fields: Any) -> SimCLR:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return SimCLR(setup, ResNet(setup.config.backbone))


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def test_loss_is_equation_1_on_the_projected_views() -> None:
    method, batch = small_simclr(temperature=0.2).double(), whole_batch()
    out = method(batch, STEP)
    images = batch.views["global"].flatten(0, 1)
    z = F.normalize(method.projector(method.backbone(images)), dim=1)  # [2 B, D], views of an image side by side
    terms = []
    for anchor in range(12):
        weights = [(z[anchor] @ z[other] / 0.2).exp() for other in range(12)]
        terms.append(-(weights[anchor ^ 1] / (sum(weights) - weights[anchor])).log())
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_embeddings_are_gathered_in_float32_under_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[torch.dtype] = []
    all_gather = dist.all_gather
    monkeypatch.setattr(dist, "all_gather", lambda z: gathered.append(z.dtype) or all_gather(z))
    method, batch = small_simclr(), whole_batch()
    with torch.autocast("cpu", torch.bfloat16):
        method(batch.map(lambda part: part.float() if part.is_floating_point() else part), STEP)
    method.double()(batch, STEP)
    assert list(dict.fromkeys(gathered)) == [torch.float32, torch.float64]


def test_training_step_reports_collapse() -> None:
    method, batch = small_simclr().double().eval(), whole_batch()
    out = method(batch, STEP)
    torch.nn.init.zeros_(method.projector[-1].weight)
    collapsed = method(batch, STEP)
    assert collapsed.metrics["embedding_std"] < 1e-6 < out.metrics["embedding_std"]
    assert collapsed.metrics["contrastive_top1"] == 0
    assert tuple(out.metrics) == SimCLR.logged


@pytest.mark.thorough
def test_a_few_updates_make_the_contrastive_task_easy() -> None:
    torch.manual_seed(0)
    method = small_simclr(temperature=0.1)
    images = torch.randn(6, 1, 3, 8, 8)
    views = (images + 0.1 * torch.randn(6, 2, 3, 8, 8)).clamp(-3, 3)
    batch = Batch({"global": views}, torch.arange(6), torch.full((6,), -1))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    first = method(batch, STEP).loss.item()
    for _ in range(20):
        optimizer.zero_grad()
        out = method(batch, STEP)
        out.loss.backward()
        optimizer.step()
    assert out.loss.item() < 0.2 * first
    assert out.metrics["contrastive_top1"] == 100


def test_views_are_the_papers() -> None:
    recipe = SimCLR.Config().views.recipe()
    first, second = recipe.groups["global"]
    assert first == second
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    names = [type(transform).__name__ for transform in first.transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]
    assert first.transforms[1] == ColorJitter(p=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    assert first.transforms[3] == GaussianBlur(p=0.5, sigma=(0.1, 2.0))


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [(1, 2, "train.batch_size is 1; SimCLR contrasts images"), (6, 1, "num_local is 0; SimCLR pulls views")],
)
def test_check_refuses_settings_without_contrast(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimCLR.check(setup_of(batch_size, **{"views.num": num}))


def test_check_accepts_the_defaults() -> None:
    SimCLR.check(setup_of(2))


def test_every_parameter_gets_a_gradient() -> None:
    method: SimCLR = small_simclr().double()
    method(whole_batch(), STEP).loss.backward()
    missing = [name for name, parameter in method.named_parameters() if _is_zero(parameter.grad)]
    assert missing == []


def _is_zero(grad: Tensor | None) -> bool:
    return grad is None or grad.abs().max().item() == 0


def multi_crop_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    large = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=generator)
    small = torch.randn(6, 3, 3, 6, 6, dtype=torch.float64, generator=generator)
    return Batch({"global": large, "local": small}, torch.arange(6), torch.full((6,), -1))


def test_each_of_an_images_views_attracts_all_others_and_repels_those_of_all_other_images() -> None:
    method, batch = small_simclr(temperature=0.2).double(), multi_crop_batch()
    out = method(batch, STEP)
    groups = [batch.views["global"], batch.views["local"]]  # batch norm sees each size for itself
    h = torch.cat([method.backbone(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in groups], dim=1)
    z = F.normalize(method.projector(h), dim=-1)  # [6, 5, D]
    terms = []
    for image in range(6):
        others = torch.cat([z[:image], z[image + 1 :]]).flatten(0, 1)
        for anchor in range(5):
            far = (others @ z[image, anchor] / 0.2).exp().sum()
            near = [(z[image, view] @ z[image, anchor] / 0.2).exp() for view in range(5) if view != anchor]
            terms += [-(weight / (weight + far)).log() for weight in near]
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_one_large_view_and_a_small_one_are_enough() -> None:
    SimCLR.check(setup_of(2, **{"views.num": 1, "views.num_local": 1}))


def test_small_views_are_made_where_they_are_asked_for() -> None:
    groups = load_config("simclr_multicrop").method.views.recipe().groups
    assert [(name, len(views), views[0].crop.size, views[0].crop.scale) for name, views in groups.items()] == [
        ("global", 2, 224, (0.14, 1.0)),
        ("local", 6, 96, (0.05, 0.14)),
    ]
    assert groups["local"][0].transforms == groups["global"][0].transforms
