import copy
import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.ijepa import IJEPA
from raysl.nn.backbones.vit import ViT
from raysl.optim.course import weight_decay_at
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.multi_block import MultiBlockMask
from raysl.transforms.random import SampleRandom

STEP = Step(0, 10, 5)
SMALL = (
    "backbone.width=8",
    "backbone.heads=2",
    "backbone.depth=2",
    "method.predictor_width=12",
    "method.predictor_heads=2",
    "train.batch_size=3",
)


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/ijepa", [*SMALL, *words]), 6)


def small_ijepa(*words: str) -> IJEPA:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = IJEPA(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():  # a teacher unlike its student
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(3, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = MultiBlockMask(patch_size=4, num_targets=4, min_context=4)
    extras = mask.extras(SampleRandom(0, 0, np.arange(3), 0).at(1), (16, 16))
    told = {f"global.{name}": value[:, None] for name, value in extras.items()}
    return Batch({"global": images}, torch.arange(3), torch.full((3,), -1), extras=told)


@pytest.mark.parametrize("kind", ["l2", "smooth_l1"])
def test_loss_is_that_of_each_image_and_block_alone_without_padding(kind: str) -> None:
    method, batch = small_ijepa(f"method.loss={kind}"), batch_of()
    predictor, terms, sizes = method.predictor, [], set()
    for image in range(3):
        pixels = batch.views["global"][image]
        seen = (~batch.extras["global.mask"][image].flatten()).nonzero()[:, 0]
        s = F.layer_norm(method.teacher.module.tokens(pixels)[0, 1:], (8,))  # [16, D]
        context = method.backbone.visible_tokens(pixels, seen[None])[0, 1:]  # [K, D], none besides
        for block in batch.extras["global.targets"][image, 0]:
            places = block.flatten().nonzero()[:, 0]
            sizes.add((len(seen), len(places)))
            told = predictor.embed(context) + predictor.positions[seen]
            asked = predictor.mask_token + predictor.positions[places]
            x = torch.cat([told, asked])[None]
            for layer in predictor.blocks:
                x = layer(x)
            predicted = predictor.head(predictor.norm(x))[0, len(seen) :]  # [T, D]
            errors = (predicted - s[places]).abs()
            if kind == "smooth_l1":
                terms.append(torch.where(errors < 1, errors**2 / 2, errors - 0.5))
            else:
                terms.append(errors**2)
    assert len({context for context, _ in sizes}) > 1
    assert len({target for _, target in sizes}) > 1
    out = method(batch, STEP)
    torch.testing.assert_close(out.loss, torch.cat(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == IJEPA.logged


def test_an_image_is_predicted_alike_whoever_it_is_with() -> None:
    method, batch = small_ijepa(), batch_of()
    losses, counts = [], []
    for image in range(3):
        alone = batch.map(lambda rows, image=image: rows[image : image + 1])
        losses.append(method(alone, STEP).loss)
        counts.append(alone.extras["global.targets"].sum())
    together = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(method(batch, STEP).loss, together, rtol=1e-9, atol=0)


def test_the_student_knows_nothing_of_what_is_hidden() -> None:
    method, batch = small_ijepa(), batch_of()
    images = batch.views["global"].clone().requires_grad_()
    targets = method._targets(images.flatten(0, 1)).detach()
    method._targets = lambda _: targets  # type: ignore[method-assign]
    method(Batch({"global": images}, batch.index, batch.label, extras=batch.extras), STEP).loss.backward()
    patches = images.grad.unfold(3, 4, 4).unfold(4, 4, 4).abs().sum(dim=(2, 5, 6))  # [3, 1, 4, 4]
    assert torch.equal(patches == 0, batch.extras["global.mask"])


def test_gradients_reach_student_and_predictor_alone_and_the_teacher_is_exported() -> None:
    method = small_ijepa()
    method(batch_of(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}
    assert all(parameter.grad.abs().max() > 0 for parameter in method.predictor.parameters())
    assert method.export() is method.teacher.module


def test_the_teacher_follows_along_a_straight_line() -> None:
    method = small_ijepa("method.momentum=0.6")
    before = copy.deepcopy(method.teacher.module)
    method.after_update(Step(5, 10, 5), batch_of(), {})
    pairs = zip(method.teacher.module.parameters(), before.parameters(), method.backbone.parameters(), strict=True)
    for now, then, student in pairs:
        torch.testing.assert_close(now, 0.8 * then + 0.2 * student)


@pytest.mark.thorough
def test_flat_and_huge_images_and_an_empty_context_leave_the_loss_finite() -> None:
    for images in (torch.zeros(3, 1, 3, 16, 16), 1e6 * torch.randn(3, 1, 3, 16, 16)):
        method, batch = small_ijepa().float(), batch_of(images)
        for hidden in (batch.extras["global.mask"], torch.ones(3, 1, 4, 4, dtype=torch.bool)):
            extras = {**batch.extras, "global.mask": hidden}
            out = method(Batch(batch.views, batch.index, batch.label, extras=extras), STEP)
            out.loss.backward()
            assert out.loss.isfinite()
            assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_ijepa().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(torch.randn(3, 1, 3, 16, 16)), STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert method.predictor.mask_token.grad.abs().max() > 0


def test_the_published_settings() -> None:
    config = load_config("ijepa", ["data.path=/somewhere"])
    setup = Setup.of(config, 4096)
    IJEPA.check(setup)
    (view,) = IJEPA.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale, view.transforms) == (224, (0.3, 1.0), ())
    assert view.mask == MultiBlockMask(
        patch_size=16, num_targets=4, target_scale=(0.15, 0.2), target_aspect=(0.75, 1.5), context_scale=(0.85, 1.0),
        max_context=52,
    )  # fmt: skip
    assert (setup.method.momentum, setup.method.momentum_end) == (0.996, 1.0)
    assert weight_decay_at(config.optim, Step(0, 10, 5)) == pytest.approx(0.04)
    assert weight_decay_at(config.optim, Step(10, 10, 5)) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.min_context=15",),
            "a context has at most 14 of the 16 patches of a view, and method.min_context is 15",
        ),
        (
            ("method.predictor_width=64", "method.predictor_heads=3"),
            "method.predictor_width is 64, and has to be a multiple of 4, for the positions, and of "
            "method.predictor_heads=3; try predictor_heads=4 predictor_width=64",
        ),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        IJEPA.check(setup_of(*words))
