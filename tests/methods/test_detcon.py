from typing import Any

import lightly.loss.detcon_loss as peer
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import detcon
from raysl.methods.detcon import DetCon
from raysl.nn.backbones.maps import features_and_map
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.places import draw_present, grid_cells
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(**fields: Any) -> Setup:
    settings = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/detcon", [*small, f"train.batch_size={NUM}", *settings]), NUM)


def small_detcon(**fields: Any) -> DetCon:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return DetCon(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(NUM, 2, 3, 12, 12, dtype=torch.float64, generator=generator)
    corners = torch.rand(NUM, 2, 2, 2, dtype=torch.float64, generator=generator) * torch.tensor([90.0, 120.0])
    box = torch.cat([corners.flatten(2), torch.tensor([90.0, 120.0]).double().expand(NUM, 2, 2)], dim=2)
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1), extras={"global.box": box})


def rows(num: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions and targets [num, 2, 4, 6], and masks [num, 2, 4], some drawn twice and some in one view alone."""
    generator = torch.Generator().manual_seed(seed)
    p, targets = (torch.randn(num, 2, 4, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    return p, targets, torch.randint(0, 5, (num, 2, 4), generator=generator)


def slow_loss(p: Tensor, targets: Tensor, masks: Tensor, temperature: float) -> float:
    """Equation 3, one drawn mask after another."""
    p, targets = F.normalize(p, dim=-1), F.normalize(targets, dim=-1)
    num, _, num_masks, _ = p.shape
    total = 0.0
    for view in (0, 1):
        for n in range(num):
            own, others = masks[n, view].tolist(), masks[n, 1 - view].tolist()
            for m, mask in enumerate(own):
                if mask not in others:
                    continue
                against = []
                for other in range(num):
                    for k in range(num_masks):
                        against.append(p[n, view, m] @ targets[other, 1 - view, k])
                        if other != n or own[k] != mask:
                            against.append(p[n, view, m] @ targets[other, view, k])
                norm = (torch.stack(against) / temperature).logsumexp(dim=0)
                same = [p[n, view, m] @ targets[n, 1 - view, k] for k, found in enumerate(others) if found == mask]
                terms = [float(norm - cosine / temperature) for cosine in same]
                total += sum(terms) / len(terms) / own.count(mask) / (num * num_masks)
    return total


def test_loss_is_equation_3() -> None:
    p, targets, masks = rows(5, seed=0)
    out = detcon(p, masks, targets, targets, torch.arange(5), temperature=0.3)
    assert out.loss.item() == pytest.approx(slow_loss(p, targets, masks, 0.3), rel=1e-9)
    is_matched = [[mask in other for mask in one] for pair in masks.tolist() for one, other in (pair, pair[::-1])]
    assert out.matched.item() == pytest.approx(np.mean(is_matched))
    cosines = F.normalize(p, dim=-1) @ F.normalize(targets.flip(1), dim=-1).mT  # [5, 2, M, M]
    same = masks[..., :, None] == masks.flip(1)[..., None, :]
    assert out.agreement.item() == pytest.approx(cosines[same].mean().item())


@pytest.mark.parametrize("variant", ["b", "s"])
def test_loss_is_lightlys(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same = peer._same_mask
    monkeypatch.setattr(peer, "_same_mask", lambda one, other: same(one, other).double())  # its thirds are float32's
    p, targets, masks = rows(7, seed=1)
    first, second = masks.unbind(1)
    if variant == "b":
        criterion = peer.DetConBLoss(temperature=0.1, gather_distributed=False)
        expected = criterion(*p.unbind(1), *targets.unbind(1), first, second)
    else:
        targets = p
        expected = peer.DetConSLoss(temperature=0.1, gather_distributed=False)(*p.unbind(1), first, second)
    found = detcon(p, masks, targets, targets, torch.arange(7), temperature=0.1).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


def test_rows_of_a_rank_are_contrasted_with_all() -> None:
    p, targets, masks = rows(6, seed=2)
    whole = detcon(p, masks, targets, targets, torch.arange(6)).loss
    parts = [slice(0, 2), slice(2, 6)]
    losses = [detcon(p[part], masks[part], targets[part], targets, torch.arange(6)[part]).loss for part in parts]
    assert (2 * losses[0] + 4 * losses[1]).item() / 6 == pytest.approx(whole.item(), rel=1e-12)


def pooled(method: DetCon, backbone: Any, projector: Any, batch: Batch, masks: Tensor) -> Tensor:
    """Projections of the mean features under each mask, place by place."""
    found = []
    for view in range(2):
        _, values = features_and_map(backbone, batch.views["global"][:, view], method.stage)
        cells = grid_cells(batch.extras["global.box"][:, view], *values.shape[2:], method.config.grid)
        vectors = [values[n][:, cells[n] == mask].mean(dim=1) for n in range(NUM) for mask in masks[n, view]]
        found.append(projector(torch.stack(vectors)).unflatten(0, (NUM, -1)))
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("variant", ["b", "s"])
def test_a_step_pools_drawn_masks_and_contrasts_them(variant: str) -> None:
    method, batch = small_detcon(variant=variant, grid=3, num_masks=5), whole_batch()
    if variant == "b":
        method.teacher.module[1][0].weight.data += 0.05  # targets of another network than the predictions'
    out = method(batch, STEP)
    side = features_and_map(method.backbone, batch.views["global"][:, 0], method.stage)[1].shape[2]
    cells = grid_cells(batch.extras["global.box"], side, side, 3).flatten(2)
    masks = method._drawn(cells, batch)
    assert all(set(masks[n, v].tolist()) <= set(cells[n, v].tolist()) for n in range(NUM) for v in range(2))
    z = pooled(method, method.backbone, method.projector, batch, masks)
    if variant == "b":
        p = torch.stack([method.predictor(view.flatten(0, 1)).view_as(view) for view in z.unbind(1)], dim=1)
        targets = pooled(method, *method.teacher.module.children(), batch, masks)
    else:
        p = targets = z
    assert out.loss.item() == pytest.approx(slow_loss(p, targets, masks, method.config.temperature), rel=1e-9)
    assert tuple(out.metrics) == DetCon.logged


@pytest.mark.thorough
def test_detcon_s_is_one_network_and_detcon_b_has_a_slow_copy() -> None:
    names = {variant: {name for name, _ in small_detcon(variant=variant).named_children()} for variant in "bs"}
    assert names == {"s": {"backbone", "projector"}, "b": {"backbone", "projector", "predictor", "teacher"}}
    method, batch = small_detcon(variant="b", momentum=0.9), whole_batch()
    before = method.teacher.module[1][0].weight.clone()
    method.projector[0].weight.data += 1.0
    method.after_update(STEP, batch, {})
    torch.testing.assert_close(method.teacher.module[1][0].weight, before + 0.1)
    small_detcon(variant="s").after_update(STEP, batch, {})


def test_masks_are_drawn_equally_often_however_large_they_are() -> None:
    values = torch.tensor([7, 7, 7, 7, 7, 2, 2, 0]).expand(3000, 8)
    numbers = torch.rand(3000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(draw_present(values, numbers, 9).flatten(), minlength=9)
    assert counts[[1, 3, 4, 5, 6, 8]].sum() == 0
    assert (counts[[0, 2, 7]] / 12000 - 1 / 3).abs().max() < 0.02


def test_check_refuses_what_cannot_work() -> None:
    with pytest.raises(ConfigError, match=r"method\.stage is 'res9'; the stages of the backbone are"):
        DetCon.check(setup_of(stage="res9"))
    with pytest.raises(ConfigError, match=r"method\.final_momentum is 0\.5"):
        DetCon.check(setup_of(final_momentum=0.5))
    DetCon.check(setup_of())
