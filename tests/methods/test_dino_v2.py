import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.dino_v2 import DINOv2
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import BlockMask
from raysl.transforms.photometric import GaussianBlur
from tests.methods.test_ibot import MASKED, whole_batch
from tests.transforms.papers import RECIPES

STEP = Step(0, 100, 10)
SMALL = (
    "backbone.width=8",
    "backbone.depth=2",
    "backbone.heads=2",
    "method.head.num_prototypes=7",
    "method.head.norm=false",
    "method.head.hidden_dim=12",
    "method.head.bottleneck_dim=5",
    "method.patch_head.num_prototypes=6",
    "method.patch_head.norm=false",
    "method.patch_head.hidden_dim=12",
    "method.patch_head.bottleneck_dim=4",
    "train.batch_size=3",
)


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/dino_v2", [*SMALL, *words]), 6)


def small_dino_v2(*words: str) -> DINOv2:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = DINOv2(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():  # a teacher that has gone its own way
        for teacher in (method.teacher, method.teacher_head, method.teacher_patch_head):
            for parameter in teacher.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def balanced(scores: Tensor, temp: float = 0.04) -> Tensor:
    """Sinkhorn-Knopp by hand, three rounds: rows are samples, each sums to 1 at the end."""
    q = (scores / temp).exp()
    for _ in range(3):
        q = q / q.sum(dim=0, keepdim=True) / q.shape[1]
        q = q / q.sum(dim=1, keepdim=True) / len(q)
    return q * len(q)


def expected_losses(method: DINOv2, batch: Batch) -> dict[str, Tensor]:
    """The three losses term by term: one image, view and patch after another."""
    large, mask, prefix = batch.views["global"], batch.extras["global.mask"], method.backbone.num_prefix_tokens
    seen = [[method.backbone.tokens(large[i, [v]], mask[i, [v]])[0] for v in range(2)] for i in range(3)]
    whole = [[method.teacher.module.tokens(large[i, [v]])[0] for v in range(2)] for i in range(3)]
    small = [[method.backbone.tokens(batch.views["local"][i, [v]])[0] for v in range(2)] for i in range(3)]
    told = torch.stack([method.teacher_head.module(whole[i][v][:1])[0] for i in range(3) for v in range(2)])
    codes = balanced(told).view(3, 2, 7)
    everywhere = [[range(16)] * 2] * 3
    learned = everywhere if method.config.patch_loss == "all" else MASKED
    triples = [(i, v, place) for i in range(3) for v in range(2) for place in learned[i][v]]
    rows = [method.teacher_patch_head.module(whole[i][v][prefix + p : prefix + p + 1])[0] for i, v, p in triples]
    patch_codes = dict(zip(triples, balanced(torch.stack(rows)), strict=True))
    class_terms, patch_terms, spread = [], [], torch.zeros(())
    for i in range(3):
        for assigned in range(2):
            for view, tokens in enumerate(seen[i] + small[i]):
                if view != assigned:
                    log_p = torch.log_softmax(method.head(tokens[:1])[0] / 0.1, dim=0)
                    class_terms.append(-(codes[i, assigned] * log_p).sum())
        for v in range(2):
            log_p = torch.log_softmax(method.patch_head(seen[i][v][prefix:]) / 0.1, dim=1)
            terms = [-(patch_codes[i, v, place] * log_p[place]).sum() for place in learned[i][v]]
            patch_terms.append(torch.stack(terms).mean() if terms else log_p.new_zeros(()))
    for v in range(2):
        units = [seen[i][v][0] / seen[i][v][0].norm() for i in range(3)]
        nearest = [min((units[i] - units[j]).norm() for j in range(3) if j != i) for i in range(3)]
        spread = spread - sum((distance + 1e-8).log() for distance in nearest) / 3
    return {
        "class_loss": torch.stack(class_terms).mean(),
        "patch_loss": torch.stack(patch_terms).mean(),
        "koleo": spread,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("patch_loss", ["masked", "all"])
def test_the_loss_is_that_of_class_tokens_patches_and_koleo(patch_loss: str) -> None:
    method, batch = small_dino_v2(f"method.patch_loss={patch_loss}"), whole_batch()
    out = method(batch, STEP)
    expected = expected_losses(method, batch)
    for name, value in expected.items():
        torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-8, atol=0)
    total = expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"]
    torch.testing.assert_close(out.loss, total, rtol=1e-8, atol=0)
    assert tuple(out.metrics) == DINOv2.logged


@pytest.mark.thorough
def test_gradients_are_those_of_the_losses_by_hand_and_reach_registers_and_mask_token() -> None:
    method, batch = small_dino_v2(), whole_batch()
    method(batch, STEP).loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    assert min(ours[f"backbone.{token}"].abs().max() for token in ("mask_token", "reg_token")) > 0
    assert not any(name.startswith("teacher") for name in ours)
    method.zero_grad()
    expected = expected_losses(method, batch)
    (expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"]).backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-11)


def test_patches_that_are_not_masked_have_no_say_in_the_codes() -> None:
    method, batch = small_dino_v2(), whole_batch()
    before = method(batch, STEP).metrics["patch_loss"]
    method.num_learned = 16  # gathers all patches, masked or not
    torch.testing.assert_close(method(batch, STEP).metrics["patch_loss"], before, rtol=1e-9, atol=0)


def test_without_any_masked_patch_the_patch_loss_is_zero_and_all_is_finite() -> None:
    method, batch = small_dino_v2(), whole_batch()
    batch.extras["global.mask"].fill_(False)
    out = method(batch, STEP)
    out.loss.backward()
    assert out.metrics["patch_loss"] == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


def test_equal_images_leave_loss_and_gradients_finite() -> None:
    method, batch = small_dino_v2().float(), whole_batch()
    flat = Batch({name: torch.zeros_like(view).float() for name, view in batch.views.items()}, batch.index, batch.label)
    flat.extras.update(batch.extras)
    out = method(flat, STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_after_an_update_every_teacher_has_followed_by_a_cosine_of_momenta() -> None:
    method, batch = small_dino_v2("method.momentum=0.75"), whole_batch()
    before = {name: value.clone() for name, value in method.named_parameters() if name.startswith("teacher")}
    method.after_update(Step(50, 100, 10), batch, {})
    momentum = 1 - 0.25 * (1 + math.cos(math.pi / 2)) / 2
    for name, was in before.items():
        student = name.replace("teacher_patch_head.module", "patch_head").replace("teacher_head.module", "head")
        value = method.get_parameter(student.replace("teacher.module", "backbone"))
        expected = momentum * was + (1 - momentum) * value
        torch.testing.assert_close(method.get_parameter(name), expected, rtol=1e-9, atol=1e-12)


def test_prototypes_of_both_heads_are_held_at_first() -> None:
    method = small_dino_v2("method.freeze_last_layer=1ep")
    for index in (9, 10):
        method.zero_grad()
        method(whole_batch(), STEP).loss.backward()
        method.after_backward(Step(index, 100, 10))
        grads = [p.grad for head in (method.head, method.patch_head) for p in head.last.parameters()]
        assert [grad is None for grad in grads] == [index < 10] * 4


@pytest.mark.thorough
def test_settings_are_the_authors() -> None:
    config: Any = DINOv2.Config()
    assert (config.class_weight, config.patch_weight, config.koleo_weight, config.sinkhorn_iters) == (1, 1, 0.1, 3)
    setup = Setup.of(load_config("dino_v2", ["data.path=/images"]), 4096)
    DINOv2.check(setup)
    groups, ibots = DINOv2.views(setup).groups, RECIPES["ibot"]().groups
    assert [len(groups[name]) for name in ("global", "local")] == [2, 8]
    assert [view.crop.scale for view in (groups["global"][0], groups["local"][0])] == [(0.32, 1.0), (0.05, 0.32)]
    for ours, theirs in zip(groups["global"], ibots["global"], strict=True):
        kernels = {"kernel_size": 9}
        blurred = [replace(t, **kernels) if isinstance(t, GaussianBlur) else t for t in theirs.transforms]
        assert list(ours.transforms) == blurred
        assert isinstance(theirs.mask, BlockMask)
        assert ours.mask == replace(theirs.mask, patch_size=14, min_block=4)


def test_the_teacher_is_exported_with_its_registers() -> None:
    method = small_dino_v2()
    assert method.export() is method.teacher.module
    assert "reg_token" in method.export().state_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backbone.mask_token=false",), "backbone.mask_token is false, and DINOv2 puts that token"),
        (("train.batch_size=1",), "train.batch_size is 1; KoLeo takes the distance to another image"),
        (("method.views.local_size=10",), "set method.views.local_size=8 or 12"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        DINOv2.check(setup_of(*words))
