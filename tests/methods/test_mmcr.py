from typing import Any

import pytest
import torch
from lightly.loss import MMCRLoss
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import mmcr, nuclear_norm
from raysl.methods.mmcr import MMCR
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import Solarize

STEP = Step(0, 10, 5)
NUM, VIEWS = 6, 3


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/mmcr", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_mmcr(**fields: Any) -> MMCR:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return MMCR(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, VIEWS, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def embedded(network: Any, images: Tensor) -> Tensor:
    """All views through batch normalisation at once, of length 1, [NUM, VIEWS, 5]."""
    return F.normalize(network(images.flatten(0, 1)), dim=-1).view(NUM, VIEWS, -1)


@pytest.mark.parametrize("local_weight", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_loss_is_equation_2_and_lightlys(local_weight: float, momentum: float | None) -> None:
    method = small_mmcr(local_weight=local_weight, momentum="null" if momentum is None else momentum)
    if momentum is not None:
        method.teacher.module[1][0].weight.data += 0.1
    batch = whole_batch()
    out = method(batch, STEP)
    z = embedded(torch.nn.Sequential(method.backbone, method.projector), batch.views["global"]).detach()
    slow = z if momentum is None else embedded(method.teacher, batch.views["global"])
    centroids = torch.stack([(z[n].sum(dim=0) + slow[n].sum(dim=0)) / (2 * VIEWS) for n in range(NUM)])
    norms = [float(torch.linalg.eigvalsh(rows @ rows.T).clamp(min=0).sqrt().sum()) for rows in (centroids, *z)]
    assert out.loss.item() == pytest.approx(-norms[0] + local_weight * sum(norms[1:]) / NUM, rel=1e-6)
    if local_weight == 0:
        assert out.loss.item() == pytest.approx(MMCRLoss(0.0)(z, slow).item(), rel=1e-9)
    assert tuple(out.metrics) == MMCR.logged


def test_local_norms_are_lightlys_without_a_teacher() -> None:
    z = F.normalize(torch.randn(7, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), dim=-1)
    theirs = MMCRLoss(0.5)(z[:, :1], z[:, 1:])  # the two halves of one set of views
    assert mmcr(z, z.mean(dim=1), 0.5).item() == pytest.approx(theirs.item(), rel=1e-9)


def test_capacity_is_largest_for_orthogonal_centroids_and_least_for_equal_ones() -> None:
    orthogonal = torch.eye(4, dtype=torch.float64)
    assert nuclear_norm(orthogonal).item() == pytest.approx(4)
    assert nuclear_norm(orthogonal[:1].expand(4, 4)).item() == pytest.approx(2)


def test_embeddings_that_are_one_have_a_finite_gradient() -> None:
    method = small_mmcr()
    out = method(whole_batch().map(torch.zeros_like), STEP)
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_the_teacher_follows_by_the_authors_share() -> None:
    method = small_mmcr(momentum=0.9)
    before = method.teacher.module[1][0].weight.clone()
    method.projector[0].weight.data += 1.0
    method.after_update(STEP, whole_batch(), {})
    torch.testing.assert_close(method.teacher.module[1][0].weight, before + 0.1)


def test_views_and_networks_are_the_authors() -> None:
    config = load_config("mmcr", ["data.path=/images"])
    views = config.method.views.recipe().groups["global"]
    assert len(views) == 8
    assert [view.transforms[-1] == Solarize(p=0.2) for view in views] == [False, True] * 4
    assert (config.method.hidden_dim, config.method.output_dim, config.method.momentum) == (8192, 512, 0.99)


@pytest.mark.parametrize(
    ("batch_size", "num", "message"), [(1, 2, "one centroid has no capacity"), (NUM, 1, "method.views.num is 1; MMCR")]
)
def test_check_refuses_settings_without_capacity(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MMCR.check(setup_of(batch_size, **{"views.num": num}))
    MMCR.check(setup_of(2))
