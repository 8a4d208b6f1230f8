from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import dist
from raysl.data.batch import Batch, DataInfo
from raysl.errors import ConfigError
from raysl.methods.simclr import SimCLR, Views
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.batch_norm import convert_sync_batch_norm, norm_statistics
from raysl.schedule import Step
from raysl.transforms import Affine, ColorJitter, GaussianBlur, HorizontalFlip
from tests.distributed import run_ranks

DATA = DataInfo(num_samples=6, num_classes=10, image_size=8)
STEP = Step(0, 10, 5)
SHARES = {2: {"even": [3, 3], "uneven": [5, 1]}, 3: {"even": [2, 2, 2], "uneven": [3, 1, 2]}}


def small_simclr(**fields: Any) -> SimCLR:
    torch.manual_seed(0)
    backbone = ResNet(ResNet.Config(depth=10, num_stages=2, width=4, stem="cifar"))
    return SimCLR(SimCLR.Config(hidden_dim=16, output_dim=8, **fields), backbone, DATA)


def whole_batch(views: int = 2) -> Batch:
    images = torch.randn(6, views, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def gradients(counts: list[int], views: int) -> dict[str, Any]:
    """One step as the loop takes it, with this rank's share of the batch."""
    method = convert_sync_batch_norm(small_simclr(projector_norm=True).double())
    batch = whole_batch(views).map(lambda rows: torch.split(rows, counts)[dist.rank()])
    wrapped = dist.data_parallel(method)
    out = wrapped(batch, STEP)
    (out.loss * (len(batch) * dist.world() / sum(counts))).backward()
    return {
        "loss": out.loss.item() * len(batch) / sum(counts),
        "metrics": {name: value.item() for name, value in out.metrics.items()},
        "features": out.features,
        "grads": {name: parameter.grad for name, parameter in method.named_parameters()},
        "statistics": norm_statistics(method),
    }


def all_shares(world: int) -> dict[str, Any]:
    results = {share: gradients(counts, views=2) for share, counts in SHARES[world].items()}
    results["three views"] = gradients(SHARES[world]["uneven"], views=3)
    return results


@pytest.fixture(scope="module", params=[2, 3], ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_ranks(request.param, all_shares, request.param)


@pytest.mark.parametrize("share", ["even", "uneven", "three views"])
def test_ranks_give_the_loss_and_gradients_of_one_process(ranks: list[dict[str, Any]], share: str) -> None:
    one = gradients([6], views=3 if share == "three views" else 2)
    assert sum(rank[share]["loss"] for rank in ranks) == pytest.approx(one["loss"], rel=1e-9)
    torch.testing.assert_close(
        torch.cat([rank[share]["features"] for rank in ranks]), one["features"], rtol=1e-9, atol=0
    )
    for rank in ranks:
        assert rank[share]["metrics"]["embedding_std"] == pytest.approx(one["metrics"]["embedding_std"])
        for name, grad in one["grads"].items():
            scale = grad.abs().max().item()
            torch.testing.assert_close(rank[share]["grads"][name], grad, rtol=1e-9, atol=1e-9 * scale, msg=name)
        for ours, theirs in zip(rank[share]["statistics"], one["statistics"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


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
        out = method(batch.map(lambda part: part.float() if part.is_floating_point() else part), STEP)
    assert out.features.dtype == torch.bfloat16
    method.double()(batch, STEP)
    assert gathered == [torch.float32, torch.float64]


def test_training_step_reports_collapse_and_features_of_the_first_view() -> None:
    method, batch = small_simclr().double().eval(), whole_batch()
    out = method(batch, STEP)
    assert not out.features.requires_grad
    torch.testing.assert_close(out.features, method.backbone(batch.views["global"][:, 0]).detach())
    torch.nn.init.zeros_(method.projector[-1].weight)
    collapsed = method(batch, STEP)
    assert collapsed.metrics["embedding_std"] < 1e-6 < out.metrics["embedding_std"]
    assert collapsed.metrics["contrastive_top1"] == 0
    assert tuple(out.metrics) == SimCLR.logged


def test_a_few_updates_make_the_contrastive_task_easy() -> None:
    torch.manual_seed(0)
    method = small_simclr()
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


def chain(views: Views) -> tuple[Any, ...]:
    return SimCLR.views(SimCLR.Config(views=views)).groups["global"][0].transforms


def test_views_are_the_papers() -> None:
    recipe = SimCLR.views(SimCLR.Config())
    first, second = recipe.groups["global"]
    assert first == second
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    names = [type(transform).__name__ for transform in first.transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]
    assert first.transforms[1] == ColorJitter(p=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    assert first.transforms[3] == GaussianBlur(p=0.5, sigma=(0.1, 2.0))


def test_views_leave_out_what_can_never_act() -> None:
    off = Views(flip=0, jitter_strength=0, grayscale_p=0, blur_p=0)
    assert chain(off) == ()
    assert chain(replace(off, flip=1)) == (HorizontalFlip(p=1),)
    affine = replace(off, affine_p=0.5, degrees=10, translate=0.1, scale=(0.9, 1.1), shear=5)
    assert chain(affine) == (Affine(p=0.5, degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5),)
    assert chain(replace(off, affine_p=0.5)) == ()
    assert SimCLR.views(SimCLR.Config(views=replace(off, num=4))).num_views == 4


@pytest.mark.parametrize(
    ("config", "batch_size", "message"),
    [
        (SimCLR.Config(), 1, "train.batch_size is 1"),
        (SimCLR.Config(views=Views(jitter_strength=3)), 256, "method.views: .*hue"),
    ],
)
def test_check_refuses_settings_without_contrast(config: SimCLR.Config, batch_size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimCLR.check(config, DATA, SimpleNamespace(batch_size=batch_size))


def test_check_accepts_the_defaults() -> None:
    SimCLR.check(SimCLR.Config(), DATA, SimpleNamespace(batch_size=2))


def test_every_parameter_gets_a_gradient() -> None:
    method: SimCLR = small_simclr().double()
    method(whole_batch(), STEP).loss.backward()
    missing = [name for name, parameter in method.named_parameters() if _is_zero(parameter.grad)]
    assert missing == []


def _is_zero(grad: Tensor | None) -> bool:
    return grad is None or grad.abs().max().item() == 0
