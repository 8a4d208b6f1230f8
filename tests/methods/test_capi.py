import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from lightly.loss import capi_loss
from lightly.models.modules.heads import CAPIProjectionHead
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import patchify, soft_cross_entropy
from raysl.methods.capi import CAPI
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import drop_slots
from raysl.nn.sinkhorn import sinkhorn
from raysl.optim.build import build_optimizer, set_schedules
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.inverse_block import InverseBlockMask

STEP = Step(0, 10, 5)
VISIBLE = ((0, 1, 4, 5, 8, 9), (6, 7, 10, 11, 14, 15))  # of 16 patches
PREDICTED = ((2, 3, 15), (0, 5, 13))


def setup_of(*words: str) -> Setup:
    small = ["backbone.width=8", "backbone.heads=2", "backbone.depth=2", "train.batch_size=2"]
    predictor = ["method.predictor_width=16", "method.predictor_depth=2", "method.predictor_heads=2"]
    rest = ["method.num_clusters=5", "method.predicted_share=0.3"]
    return Setup.of(load_config("digits/capi", [*small, *predictor, *rest, *words]), 6)


def small_method(*words: str) -> CAPI:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = CAPI(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():  # the teacher and the student differ, and lengths are not 1
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        method.head.scale.add_(torch.rand_like(method.head.scale))
        method.clustering.bias.normal_()
    return method


def images_of() -> Tensor:
    return torch.randn(2, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def batch_of(images: Tensor | None = None) -> Batch:
    mask, predicted = torch.ones(2, 16, dtype=torch.bool), torch.zeros(2, 16, dtype=torch.bool)
    for image in range(2):
        mask[image, list(VISIBLE[image])] = False
        predicted[image, list(PREDICTED[image])] = True
    extras = {"global.mask": mask.view(2, 1, 4, 4), "global.predicted": predicted.view(2, 1, 4, 4)}
    views = {"global": images_of() if images is None else images}
    return Batch(views, torch.arange(2), torch.full((2,), -1), extras=extras)


def slow_codes(scores: Tensor, temperature: float) -> Tensor:
    """Assignments [B, K] at one place: clusters, then images, by turns."""
    q = (scores / temperature).exp()
    for _ in range(3):
        q = torch.stack([q[:, cluster] / q[:, cluster].sum() for cluster in range(q.shape[1])], dim=1)
        q = torch.stack([row / row.sum() for row in q])
    return q


def turned(x: Tensor, place: int) -> Tensor:
    """A head's 8 channels at a place of 4 x 4 patches: two pairs turn with the row, two with the column."""
    row, column = (((at + 0.5) / 4 * 2 - 1) for at in divmod(place, 4))
    angles = [7 * math.pi * at / 10_000 ** (number / 2) for at in (row, column) for number in range(2)]
    low = [x[i] * math.cos(angle) - x[i + 4] * math.sin(angle) for i, angle in enumerate(angles)]
    high = [x[i + 4] * math.cos(angle) + x[i] * math.sin(angle) for i, angle in enumerate(angles)]
    return torch.stack([*low, *high])


def slow_prediction(method: CAPI, tokens: Tensor, visible: tuple[int, ...], place: int) -> Tensor:
    """Scores of clusters [K] of one hidden patch, which looks at tokens [P + T, D], a head at a time."""
    x, predictor = method.predictor.mask_token, method.predictor
    for block in predictor.blocks:
        q = block.q(block.norm1(x))
        keys, values = block.kv(tokens).chunk(2, dim=1)
        seen = []
        for part in (slice(0, 8), slice(8, 16)):
            patches = [turned(key, at) for key, at in zip(keys[3:, part], visible, strict=True)]
            shares = torch.softmax(torch.stack([*keys[:3, part], *patches]) @ turned(q[part], place) / math.sqrt(8), 0)
            seen.append(shares @ values[:, part])
        x = x + block.proj(torch.cat(seen))
        x = x + block.mlp(block.norm2(x))
    x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    rows = [scale * row / row.norm() for row, scale in zip(method.head.weight, method.head.scale, strict=True)]
    return torch.stack([row @ x / x.norm() for row in rows])


def slow_losses(method: CAPI, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of predictions and that of clusters, a patch at a time."""
    images, config = batch.views["global"].flatten(0, 1), method.config
    with torch.no_grad():
        patches = method.teacher.module.tokens(images)[:, 3:]  # behind a class token and two registers
    told, clustering, predictions = {}, [], []
    for place in range(16):
        rows = [patches[image, place] / patches[image, place].norm() for image in range(2)]
        scores = torch.stack([method.clustering.weight @ row + method.clustering.bias for row in rows])
        codes = slow_codes(scores.detach(), config.target_temp)
        for image in range(2):
            told[image, place] = codes[image]
            clustering.append(-(codes[image] * torch.log_softmax(scores[image] / config.clustering_temp, 0)).sum())
    for image in range(2):
        tokens = method.backbone.visible_tokens(images[[image]], torch.tensor([VISIBLE[image]]))[0]
        for place in PREDICTED[image]:
            scores = slow_prediction(method, tokens, VISIBLE[image], place)
            predictions.append(-(told[image, place] * torch.log_softmax(scores / config.temperature, 0)).sum())
    return torch.stack(predictions).mean(), torch.stack(clustering).mean()


@pytest.mark.thorough
def test_losses_are_those_of_slow_loops_over_patches() -> None:
    method, batch = small_method(), batch_of()
    out = method(batch, STEP)
    prediction, clustering = slow_losses(method, batch)
    torch.testing.assert_close(out.metrics["prediction_loss"], prediction.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(out.metrics["clustering_loss"], clustering.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(out.loss, prediction + clustering, rtol=1e-9, atol=0)


def lightly_scores(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of clusters of all patches [B, N, K] and of predictions [B, M, K], and the places of these [B, M]."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(6, 9, 7, dtype=torch.float64, generator=generator)
    student = torch.randn(6, 4, 7, dtype=torch.float64, generator=generator)
    return teacher, student, torch.stack([torch.randperm(9, generator=generator)[:4] for _ in range(6)])


def test_assignments_equal_lightlys() -> None:
    scores, _, _ = lightly_scores()
    theirs = capi_loss.sinkhorn_knopp(scores / 0.06, epsilon=0.0)
    ours = sinkhorn(scores.transpose(0, 1), 0.06).transpose(0, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    # By default it adds 1e-8 to each divisor, as the authors' code does: it matters to patches far from all clusters.
    near = sinkhorn(scores.transpose(0, 1) / 10, 0.06).transpose(0, 1)
    torch.testing.assert_close(near, capi_loss.sinkhorn_knopp(scores / 10 / 0.06), rtol=1e-6, atol=0)


def test_losses_equal_lightlys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capi_loss, "sinkhorn_knopp", partial(capi_loss.sinkhorn_knopp, epsilon=0.0))
    teacher, student, places = lightly_scores()
    criterion = capi_loss.CAPILoss()
    codes = sinkhorn(teacher.transpose(0, 1), 0.06).transpose(0, 1)
    torch.testing.assert_close(
        soft_cross_entropy(teacher / 0.12, codes), criterion(teacher, teacher), rtol=1e-9, atol=0
    )
    targets = codes.gather(1, places[..., None].expand(-1, -1, 7))
    torch.testing.assert_close(
        soft_cross_entropy(student / 0.12, targets), criterion(teacher, student, places), rtol=1e-9, atol=0
    )


def test_heads_equal_lightlys() -> None:
    method = small_method()
    clusters, head = CAPIProjectionHead(8, 5, bias=True).double(), CAPIProjectionHead(16, 5, weight_norm=True).double()
    clusters.layer.load_state_dict(method.clustering.state_dict())
    with torch.no_grad():
        head.layer.weight_v.copy_(method.head.weight)
        head.layer.weight_g.copy_(method.head.scale)
    images = images_of().flatten(0, 1)
    with torch.no_grad():
        patches = method.teacher.module.tokens(images)[:, 3:]
    torch.testing.assert_close(method._cluster_scores(images).transpose(0, 1), clusters(patches), rtol=1e-9, atol=1e-12)
    z = torch.randn(2, 3, 16, dtype=torch.float64)
    unit = torch.nn.functional.normalize(z, dim=-1)
    torch.testing.assert_close(method.head(unit), head(z), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_clusters_are_used_alike_at_each_place_or_over_all() -> None:
    scores = 2 * torch.randn(3, 40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores += 3 * torch.randn(3, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # of places
    each, joint = (
        small_method(f"method.is_positionwise={flag}", "method.sinkhorn_iters=500") for flag in (True, False)
    )
    each_codes, joint_codes = each._codes(scores / 10), joint._codes(scores / 10)
    torch.testing.assert_close(each_codes.sum(dim=1), torch.full((3, 5), 8.0).double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(joint_codes.sum(dim=(0, 1)), torch.full((5,), 24.0).double(), rtol=1e-3, atol=0)
    assert (joint_codes.sum(dim=1) - 8).abs().max() > 2


@pytest.mark.thorough
def test_the_two_losses_share_no_gradient() -> None:
    method = small_method()
    method(batch_of(), STEP).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in method.parameters() if p.requires_grad)
    grads = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    method.zero_grad()
    _, clustering = slow_losses(method, batch_of())
    clustering.backward()
    touched = {name for name, p in method.named_parameters() if p.grad is not None}
    assert touched == {"clustering.weight", "clustering.bias"}
    for name in touched:
        torch.testing.assert_close(grads[name], method.get_parameter(name).grad, rtol=1e-9, atol=1e-12)


def test_predictions_know_nothing_of_hidden_pixels_nor_of_each_other() -> None:
    method = small_method()
    images = images_of()[:, 0].requires_grad_()
    keep, places = torch.tensor(VISIBLE), torch.tensor(PREDICTED)
    tokens = method.backbone.visible_tokens(images, keep)
    together = method.predictor(tokens, images, keep, places)
    together.square().sum().backward()
    method.predictor(tokens.detach(), images, keep, places)[0, 0, 0].backward()
    assert images.grad is not None
    sums = patchify(images.grad, 4).abs().sum(dim=2)  # [2, 16]
    for image, visible in enumerate(VISIBLE):
        assert {place for place in range(16) if sums[image, place] > 0} <= set(visible)
    for number in range(3):
        alone = method.predictor(tokens, images, keep, places[:, [number]])
        torch.testing.assert_close(alone[:, 0], together[:, number], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("index", "expected"), [(0, 1.0), (5, 0.9995), (10, 0.999), (55, 1 - 0.0005 * (1 + math.cos(0.4 * math.pi)))]
)
def test_the_teacher_follows_faster_during_the_warm_up_and_then_ever_more_slowly(index: int, expected: float) -> None:
    method = small_method("method.momentum=0.999")
    before = {name: value.clone() for name, value in method.teacher.module.named_parameters()}
    method.after_update(Step(index, 100, 10), batch_of(), {})
    student = dict(method.backbone.named_parameters())
    for name, value in method.teacher.module.named_parameters():
        torch.testing.assert_close(value, expected * before[name] + (1 - expected) * student[name], rtol=1e-9, atol=0)
    assert method.export() is method.teacher.module


def test_clusters_have_half_the_learning_rate_and_a_tenth_of_the_decay() -> None:
    method, setup = small_method(), setup_of()
    optimizer = build_optimizer(method, setup.config.optim)
    set_schedules(optimizer, setup.config.optim, Step(50, 100, 10), 2)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert set(groups) == {id(p) for p in method.parameters() if p.requires_grad}
    rest = groups[id(method.head.weight)]
    for parameter in method.clustering.parameters():
        assert groups[id(parameter)]["lr"] == pytest.approx(rest["lr"] / 2)
        assert groups[id(parameter)]["weight_decay"] == pytest.approx(rest["weight_decay"] / 10)


def test_the_predictor_drops_blocks_by_numbers_that_the_backbone_does_not_draw() -> None:
    method = small_method("backbone.drop_path=0.1", "method.predictor_drop_path=0.2", "backbone.rope_rescale=2")
    backbone, predictor = set(drop_slots(method.backbone)), set(drop_slots(method.predictor))
    assert len(predictor) == 4
    assert not backbone & predictor
    assert drop_slots(method.teacher) == []


def test_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_method().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(images_of().float()), STEP)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert tuple(out.metrics) == CAPI.logged


def test_settings_and_views_are_those_of_the_authors() -> None:
    setup = Setup.of(load_config("capi", ["data.path=/somewhere"]), 20_000)
    CAPI.check(setup)
    (view,) = CAPI.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.6, 1.0))
    assert view.mask == InverseBlockMask(patch_size=14)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.predicted_share=0.05",), "hides 10 of the 16 patches of a view, and method.predicted_share=0.05"),
        (("method.mask_ratio=0.05",), "hides 0 of the 16 patches"),
        (("method.predictor_width=20",), "predictor_width=20 has to be a multiple of 4 * method.predictor_heads=2"),
        (("train.batch_size=1",), "train.batch_size is 1; CAPI balances assignments over the batch"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)  # fmt: skip
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        CAPI.check(setup_of(*words))
