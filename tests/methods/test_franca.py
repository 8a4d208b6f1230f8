import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.franca import Franca
from raysl.nn.backbones.vit import ViT
from raysl.nn.dino_head import NestedHead
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.inverse_block import CyclicMask
from raysl.transforms.masking import BlockMask
from tests.methods.test_dino_v2 import SMALL, balanced
from tests.methods.test_ibot import MASKED, whole_batch

STEP = Step(0, 100, 10)
FEW = ("method.head.num_prototypes=14", "method.patch_head.num_prototypes=12")


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/franca", [*SMALL, *FEW, *words]), 6)


def small_franca(*words: str) -> Franca:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = Franca(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():  # heads that tell something apart, and a teacher that has gone its own way
        for parameter in [*method.head.parameters(), *method.patch_head.parameters()]:
            parameter.add_(0.3 * torch.randn_like(parameter))
        method.teacher_head.update(method.head, 0.0)
        method.teacher_patch_head.update(method.patch_head, 0.0)
        for teacher in (method.teacher, method.teacher_head, method.teacher_patch_head):
            for parameter in teacher.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def scores_of(head: NestedHead, number: int, rows: Tensor) -> Tensor:
    """Scores [n, K] of the head of one level, from rows [n, D]."""
    level: Any = head.levels[number]
    first, second, third = (layer for layer in level.mlp if isinstance(layer, torch.nn.Linear))
    x = rows @ level.projection.weight.T + level.projection.bias
    for layer in (first, second, third):
        x = F.gelu(x @ layer.weight.T + layer.bias)
    directions = torch.stack([row / row.norm() for row in level.last.weight])
    return x @ (directions * level.last.scale).T


def expected_losses(method: Franca, batch: Batch) -> dict[str, Tensor]:
    """The losses of class tokens and patches, one head, image, view and patch after another."""
    large, mask, prefix = batch.views["global"], batch.extras["global.mask"], method.backbone.num_prefix_tokens
    seen = [[method.backbone.tokens(large[i, [v]], mask[i, [v]])[0] for v in range(2)] for i in range(3)]
    whole = [[method.teacher.module.tokens(large[i, [v]])[0] for v in range(2)] for i in range(3)]
    small = [[method.backbone.tokens(batch.views["local"][i, [v]])[0] for v in range(2)] for i in range(3)]
    triples = [(i, v, place) for i in range(3) for v in range(2) for place in MASKED[i][v]]
    class_loss, patch_loss = [], []
    for number in range(3):
        told = torch.stack([whole[i][v][0] for i in range(3) for v in range(2)])
        codes = balanced(scores_of(method.teacher_head.module, number, told)).unflatten(0, (3, 2))
        rows = torch.stack([whole[i][v][prefix + place] for i, v, place in triples])
        patch_codes = balanced(scores_of(method.teacher_patch_head.module, number, rows))
        patch_code = dict(zip(triples, patch_codes, strict=True))
        class_terms, patch_terms = [], []
        for i in range(3):
            for assigned in range(2):
                for view, tokens in enumerate(seen[i] + small[i]):
                    if view != assigned:
                        log_p = torch.log_softmax(scores_of(method.head, number, tokens[:1])[0] / 0.1, dim=0)
                        class_terms.append(-(codes[i, assigned] * log_p).sum())
            for v in range(2):
                log_p = torch.log_softmax(scores_of(method.patch_head, number, seen[i][v][prefix:]) / 0.1, dim=1)
                terms = [-(patch_code[i, v, place] * log_p[place]).sum() for place in MASKED[i][v]]
                patch_terms.append(torch.stack(terms).mean() if terms else log_p.new_zeros(()))
        class_loss.append(torch.stack(class_terms).mean())
        patch_loss.append(torch.stack(patch_terms).mean())
    return {"class_loss": torch.stack(class_loss).sum(), "patch_loss": torch.stack(patch_loss).sum()}


@pytest.mark.thorough
def test_the_loss_is_dino_v2s_of_every_head_by_itself() -> None:
    method, batch = small_franca(), whole_batch()
    out = method(batch, STEP)
    expected = expected_losses(method, batch)
    for name, value in expected.items():
        torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-9, atol=0)
    total = expected["class_loss"] + expected["patch_loss"] + 0.1 * out.metrics["koleo"]
    torch.testing.assert_close(out.loss, total, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == Franca.logged
    out.loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None and "head." in name}
    method.zero_grad()
    total.backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-11)


@pytest.mark.thorough
def test_each_head_projects_all_channels_to_its_width_and_has_a_share_of_the_prototypes() -> None:
    method = small_franca()
    h = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    assert [len(scores[0]) for scores in method.head.split(method.head(h))] == [3, 7, 14]
    for number, width in enumerate((2, 4, 8)):
        level: Any = method.head.levels[number]
        assert level.projection.weight.shape == (width, 8)
        method.head.split(method.head(h))[number].sum().backward()
        assert ((h.grad != 0).any(dim=0)).tolist() == [True] * 8
        h.grad = None


@pytest.mark.thorough
def test_prototypes_of_all_heads_are_held_at_first() -> None:
    method, batch = small_franca("method.freeze_last_layer=10st"), whole_batch()
    for index in (0, 9, 10):
        method.zero_grad()
        step = Step(index, 100, 10)
        method(batch, step).loss.backward()
        method.after_backward(step)
        grads = [method.get_parameter(name).grad for name, _ in method.named_parameters() if ".last." in name]
        held = [grad is None for grad in grads[: len(grads) // 2]]
        assert set(held) == {index < 10}


def test_views_are_masked_by_one_moved_block_and_otherwise_by_dino_v2s_blocks() -> None:
    mask = Franca.views(setup_of()).groups["global"][0].mask
    assert mask == CyclicMask(patch_size=4, ratios=((0.0, 0.0), (0.375, 0.275)), aspect=(0.3, 1 / 0.3))
    blocks = Franca.views(setup_of("method.is_cyclic=false")).groups["global"][0].mask
    assert type(blocks) is BlockMask
    assert (blocks.ratios, blocks.aspect) == (mask.ratios, mask.aspect)


@pytest.mark.thorough
def test_settings_are_the_authors() -> None:
    setup = Setup.of(load_config("franca", ["data.path=/images"]), 4096)
    Franca.check(setup)
    head = NestedHead(768, setup.method.head, setup.method.num_levels)
    assert head.sizes == [8192, 16_384, 32_768, 65_536, 131_072]
    projections: Any = [level.projection for level in head.levels]
    assert [projection.in_features for projection in projections] == [768] * 5
    assert [projection.out_features for projection in projections] == [48, 96, 192, 384, 768]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.num_levels=5",), "method.num_levels is 5: the smallest head would have 1/16 of 8 channels and of 12"),
        (("method.num_levels=4",), "method.num_levels is 4: the smallest head would have 1/8 of 8 channels and of 12"),
        (("backbone.mask_token=false",), "backbone.mask_token is false, and Franca puts that token"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Franca.check(setup_of(*words))
