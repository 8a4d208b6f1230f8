import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.npid import NPID
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter

FIRST, SECOND = Step(0, 10, 5), Step(1, 10, 5)
EPS = torch.finfo(torch.float32).eps


def setup_of(num_samples: int = 9, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=1"]
    paper = {"loss": "nce", "projector_norm": "false"}
    mine = {"output_dim": 8, "num_negatives": 20, "temperature": 0.3, **paper, **fields}
    words = [f"method.{name}={value}" for name, value in mine.items()]
    return Setup.of(load_config("digits/npid", [*small, *words]), num_samples)


def small_npid(**fields: Any) -> NPID:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return NPID(setup, ResNet(setup.config.backbone)).double()


def batch_of(*index: int, step: int = 0) -> Batch:
    images = torch.randn(9, 1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    chosen = torch.tensor(index)
    return Batch({"global": images[chosen]}, chosen, torch.full((len(index),), -1), seed=3, step=step)


def by_hand(method: NPID, batch: Batch) -> tuple[list[list[float]], list[Tensor]]:
    """exp(w . z / T) of each image's own row and of those drawn for it; and z."""
    drawn = batch.random("npid.negatives").uniforms(20, 0.0, 9.0).astype(int).tolist()
    z = F.normalize(method.projector(method.backbone(batch.views["global"][:, 0])), dim=1)
    exps = [
        [math.exp((method.bank.bank[place] @ own).item() / 0.3) for place in (index, *others)]
        for own, index, others in zip(z, batch.index.tolist(), drawn, strict=True)
    ]
    return exps, list(z.detach())


def loss_by_hand(exps: list[list[float]], norm: float) -> float:
    noise, total = 20 / 9, 0.0
    for own, *others in exps:
        total += math.log(own / norm / (own / norm + noise + EPS))
        total += sum(math.log(noise / (other / norm + noise + EPS)) for other in others)
    return -total / len(exps)


def test_loss_is_nce_with_a_constant_from_the_first_batch() -> None:
    method, batch = small_npid(), batch_of(4, 0, 7)
    exps, _ = by_hand(method, batch)
    norm = 9 * sum(sum(row) for row in exps) / (3 * 21)
    out = method(batch, FIRST)
    assert out.loss.item() == pytest.approx(loss_by_hand(exps, norm), rel=1e-9)
    method.after_update(FIRST, batch, out.carry)
    assert method.log_norm.item() == pytest.approx(math.log(norm), rel=1e-9)
    later = batch_of(1, 0, step=1)
    exps, _ = by_hand(method, later)
    out = method(later, SECOND)
    assert out.loss.item() == pytest.approx(loss_by_hand(exps, norm), rel=1e-9)
    method.after_update(SECOND, later, out.carry)
    assert method.log_norm.item() == pytest.approx(math.log(norm), rel=1e-9)
    assert tuple(out.metrics) == NPID.logged


def test_cross_entropy_picks_the_own_row() -> None:
    method, batch = small_npid(loss="cross_entropy"), batch_of(4, 0, 7)
    exps, _ = by_hand(method, batch)
    expected = -sum(math.log(own / (own + sum(others))) for own, *others in exps) / 3
    assert method(batch, FIRST).loss.item() == pytest.approx(expected, rel=1e-9)


def test_after_an_update_the_bank_remembers_half_of_each_embedding() -> None:
    method, batch = small_npid(), batch_of(4, 0, 7)
    before, (_, z) = method.bank.bank.clone(), by_hand(method, batch)
    out = method(batch, FIRST)
    assert torch.equal(method.bank.bank, before)
    method.after_update(FIRST, batch, out.carry)
    for index, own in zip((4, 0, 7), z, strict=True):
        torch.testing.assert_close(method.bank.bank[index], F.normalize(0.5 * before[index] + 0.5 * own, dim=0))
    others = [1, 2, 3, 5, 6, 8]
    assert torch.equal(method.bank.bank[others], before[others])


def test_negatives_come_from_all_images_and_belong_to_their_own() -> None:
    method = small_npid(num_negatives=500)
    own, picked = method._sample_rows(batch_of(4, 0, 7), "npid.negatives").split([1, 500], dim=1)
    assert own.flatten().tolist() == [4, 0, 7]
    assert set(picked.flatten().tolist()) == set(range(9))
    assert torch.equal(method._sample_rows(batch_of(7), "npid.negatives")[0, 1:], picked[2])
    assert not torch.equal(picked[0], picked[1])


def test_an_images_own_row_among_the_negatives_does_not_count_against_it() -> None:
    method, batch = small_npid(), batch_of(4, 0, 7)
    with torch.no_grad():
        z = F.normalize(method.projector(method.backbone(batch.views["global"][:, 0])), dim=1)
        method.bank.bank[batch.index] = z
        assert method(batch, FIRST).metrics["contrastive_top1"] == 100
        method.bank.bank[batch.index] = -z
        assert method(batch, FIRST).metrics["contrastive_top1"] == 0
    assert (method._sample_rows(batch, "npid.negatives")[:, 1:] == batch.index[:, None]).any(dim=1).all()


def test_self_normalised_nce_takes_the_constant_from_an_images_own_negatives() -> None:
    method, batch = small_npid(loss="self_normalised"), batch_of(4, 0, 7)
    exps, _ = by_hand(method, batch)
    expected = 0.0
    for own, *others in exps:
        total = sum(others)
        expected -= math.log(own / (own + total)) + sum(math.log(total / (other + total)) for other in others)
    assert method(batch, FIRST).loss.item() == pytest.approx(expected / 3, rel=1e-9)


@pytest.mark.parametrize("loss", ["nce", "self_normalised", "cross_entropy"])
@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_loss_and_gradient_are_finite_at_extremes(loss: str, temperature: float, is_collapsed: bool) -> None:
    method, batch = small_npid(loss=loss, temperature=temperature), batch_of(4, 0, 7)
    if is_collapsed:
        method.bank.bank.fill_(8**-0.5)
        batch = Batch({"global": torch.zeros(3, 1, 3, 8, 8, dtype=torch.float64)}, batch.index, batch.label)
    out = method(batch, FIRST)
    out.loss.backward()
    method.after_update(FIRST, batch, out.carry)
    assert out.loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
    assert all(value.isfinite().all() for value in method.state_dict().values())


@pytest.mark.parametrize(
    ("num_samples", "num_views", "message"),
    [(1, 1, "there is 1 training image; NPID tells"), (9, 2, "method.views.num is 2; NPID compares one view")],
)
def test_check_refuses_what_has_nothing_to_compare(num_samples: int, num_views: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NPID.check(setup_of(num_samples, **{"views.num": num_views}))


def test_the_projector_is_the_papers_linear_layer_unless_it_is_normalised() -> None:
    shapes = {
        name: list(value.shape) for name, value in small_npid(projector_norm="false").projector.named_parameters()
    }
    assert shapes == {"0.weight": [8, 8], "0.bias": [8]}
    z = small_npid(projector_norm="true").projector(torch.randn(6, 8, dtype=torch.float64) + 5)
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_check_accepts_two_images() -> None:
    NPID.check(setup_of(2))


def test_views_are_one_crop_with_colours_always() -> None:
    (view,) = NPID.Config().views.recipe().groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip", "ColorJitter"]
    assert view.transforms[1] == ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)
