import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import unpatchify
from raysl.methods.mixmim import MixMIM, next_rows
from raysl.methods.shared.device import recomputed_units
from raysl.nn.backbones.swin import Swin
from raysl.nn.recompute import recompute
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import check_views
from raysl.train.view_stages import view_stages
from raysl.transforms import RandomMask, SampleRandom
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
NUM = 3


def setup_of(*words: str) -> Setup:
    """Digits of 16 pixels in 4 x 4 squares of 4, each four tokens of the first stage."""
    small = ("backbone.width=16", "method.decoder_width=16", f"train.batch_size={NUM}")
    return Setup.of(load_config("digits/mixmim", [*small, *words]), 8)


def small_mixmim(*words: str) -> Any:
    torch.manual_seed(0)
    setup = setup_of(*words)
    MixMIM.check(setup)
    return MixMIM(setup, Swin(setup.config.backbone)).double()


def batch_of(num: int = NUM, side: int = 16, images: Tensor | None = None, ratio: float = 0.5) -> Batch:
    """Images of one view, each with a mask of its own over squares of 4 pixels."""
    if images is None:
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(num, 1, 3, side, side, dtype=torch.float64, generator=generator)
    random = SampleRandom(seed=0, epoch=0, index=torch.arange(num).numpy(), view=0)
    mask = RandomMask(patch_size=4, ratio=ratio).draw(random, (side, side))[:, None]
    return Batch({"global": images}, torch.arange(num), torch.full((num,), -1), extras={"global.mask": mask})


def gradients(method: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    method.zero_grad()
    out = method(batch, STEP)
    out.loss.backward()
    return out.loss.detach(), {name: p.grad.clone() for name, p in method.named_parameters()}


def normalised(square: Tensor) -> Tensor:
    return (square - square.mean()) / (square.var() + 1e-6).sqrt()


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("ratio", [0.5, 0.25])
def test_loss_is_the_mean_error_of_the_hidden_squares_of_both_images_of_each_mix(num: int, ratio: float) -> None:
    method, batch = small_mixmim(f"method.mask_ratio={ratio}"), batch_of(num, ratio=ratio)
    images, masks = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
    terms = []
    for row in range(num):
        image, other, mask = images[row], images[(row + 1) % num], masks[row]
        mixed = image.clone()
        for y, x in mask.nonzero().tolist():
            mixed[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = other[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4]
        tokens = method.backbone.grouped_map(mixed[None], mask[None])
        tokens = method.decoder.embed(tokens.flatten(2).transpose(1, 2))[0]
        for target, hidden in ((image, mask), (other, ~mask)):
            seen = [
                method.decoder.mask_token if is_hidden else token
                for token, is_hidden in zip(tokens, hidden.flatten(), strict=True)
            ]
            x = torch.stack(seen)[None] + method.decoder.positions
            for block in method.decoder.blocks:
                x = block(x)
            drawn = unpatchify(method.decoder.pixels(method.decoder.norm(x)), 4, 16, 16)[0]
            for y, x in hidden.nonzero().tolist():
                at = slice(4 * y, 4 * y + 4), slice(4 * x, 4 * x + 4)
                terms.append((drawn[:, *at] - normalised(target[:, *at])).square().mean())
    assert len(terms) == num * 16
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-10, atol=0)


@pytest.mark.thorough
def test_predictions_of_an_image_know_nothing_of_the_image_that_it_is_mixed_with() -> None:
    method, batch = small_mixmim(), batch_of()
    images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
    found = []
    for other in (images.roll(1, 0), torch.full_like(images, 5.0)):
        ours, theirs = images.clone().requires_grad_(), other.clone().requires_grad_()
        h, first, _ = method._predict(ours, theirs, mask)
        first.sum().backward()
        assert not theirs.grad.any()
        pixels = mask.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None].expand_as(images)
        assert not ours.grad[pixels].any()
        assert ours.grad[~pixels].any()
        found.append((first.detach(), h.detach()[~mask.flatten(1)]))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_every_image_of_an_odd_batch_is_mixed_with_another_one() -> None:
    rows = torch.arange(5)[:, None]
    assert next_rows(rows).flatten().tolist() == [1, 2, 3, 4, 0]
    assert next_rows(rows[:1]).flatten().tolist() == [0]
    assert next_rows(rows[:0]).shape == (0, 1)


def next_of_ranks() -> list[list[int]]:
    rows = torch.arange(14).view(7, 2)
    shares = {2: [5, 2], 3: [4, 0, 3]}, {2: [0, 7], 3: [0, 0, 7]}
    return [next_rows(rows.split(counts[dist.world()])[dist.rank()]).flatten().tolist() for counts in shares]


@pytest.mark.parametrize("world", [2, 3])
def test_the_row_behind_the_last_one_of_a_rank_is_the_first_of_the_next_rank_with_rows(
    world: int, run_ranks: RunRanks
) -> None:
    for ranks in zip(*run_ranks(world, next_of_ranks), strict=True):
        assert [number for rows in ranks for number in rows] == [*range(2, 14), 0, 1]


@pytest.mark.thorough
def test_each_mix_has_a_mask_of_its_own_of_24_of_49_squares_and_views_are_the_authors() -> None:
    setup = Setup.of(load_config("mixmim", ["data.path=/somewhere"]), 4096)
    MixMIM.check(setup)
    (view,) = MixMIM.views(setup).groups["global"]
    assert view.mask == RandomMask(patch_size=32, ratio=0.5)
    assert view.mask.num_masked(49) == 24
    assert (view.crop.size, view.crop.scale, view.crop.interpolation) == (224, (0.2, 1.0), "bicubic")
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]


@pytest.mark.thorough
def test_several_views_are_each_mixed_with_the_same_view_of_the_next_image() -> None:
    method, single = small_mixmim(), batch_of(6)
    two = single.views["global"].view(3, 2, 3, 16, 16)
    masks = single.extras["global.mask"].view(3, 2, 4, 4)
    index = torch.arange(3)
    loss = method(Batch({"global": two}, index, index, extras={"global.mask": masks}), STEP).loss
    each = [
        method(Batch({"global": two[:, [v]]}, index, index, extras={"global.mask": masks[:, [v]]}), STEP).loss
        for v in range(2)
    ]
    torch.testing.assert_close(loss, torch.stack(each).mean(), rtol=1e-12, atol=0)


@pytest.mark.thorough
def test_features_of_the_log_are_means_over_the_squares_of_the_image_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    method, batch = small_mixmim(), batch_of()
    images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
    with torch.no_grad():
        tokens, _, _ = method._predict(images, images.roll(-1, 0), mask)
    means = [h[~hidden].mean(dim=0) for h, hidden in zip(tokens, mask.flatten(1), strict=True)]
    logged: list[Tensor] = []
    monkeypatch.setattr("raysl.methods.mixmim.batch_collapse", lambda h: logged.append(h) or {})
    method(batch, STEP)
    torch.testing.assert_close(logged[0], torch.stack(means)[:, None], rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_blocks_that_are_computed_again_in_the_backward_pass_give_the_same_gradients() -> None:
    stored, again = small_mixmim(), small_mixmim("train.recompute=all")
    units = recomputed_units(again, again.setup.config.train)
    assert sum(type(unit).__name__ == "SwinBlock" for unit in units) == 6
    recompute(units)
    (loss, grads), (other, others) = gradients(stored, batch_of()), gradients(again, batch_of())
    assert torch.equal(loss, other)
    for name, grad in grads.items():
        torch.testing.assert_close(others[name], grad, rtol=1e-12, atol=1e-15)


@pytest.mark.thorough
@pytest.mark.parametrize("images", [torch.zeros(NUM, 1, 3, 16, 16), torch.full((NUM, 1, 3, 16, 16), 1e6)])
def test_flat_and_huge_images_leave_the_loss_finite(images: Tensor) -> None:
    loss, grads = gradients(small_mixmim().float(), batch_of(images=images))
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in grads.values())


@pytest.mark.thorough
def test_half_precision_gives_a_loss_in_fp32_and_trains_every_parameter() -> None:
    method = small_mixmim().float()
    batch = batch_of().map(lambda values: values.float() if values.is_floating_point() else values)
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch, STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in method.parameters())


@pytest.mark.thorough
def test_the_exported_network_sees_whole_images_of_any_size() -> None:
    network = small_mixmim().export().eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    whole = network.grouped_map(images, torch.zeros(2, 4, 4, dtype=torch.bool)).mean(dim=(2, 3))
    torch.testing.assert_close(network(images), whole, rtol=1e-12, atol=1e-12)
    assert network(torch.randn(2, 3, 21, 30, dtype=torch.float64)).shape == (2, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backbone=resnet",), "backbone 'resnet' cannot keep two images apart in one, and MixMIM mixes them; set "),
        (("backbone=vit",), "backbone 'vit' cannot keep two images apart in one"),
        (
            ("data.image_size=18",),
            "views of 18 pixels are not covered by squares of 4, a place of the backbone's last map each; set "
            "data.image_size=16 or 20, or a backbone with fewer stages",
        ),
        (("method.mask_ratio=0.02",), "replaces 0 of the 16 squares of 4 pixels of a view; MixMIM needs squares of"),
        (("method.mask_ratio=0.98",), "replaces 16 of the 16 squares of 4 pixels"),
        (("method.decoder_width=18",), "method.decoder_width is 18, and has to be a multiple of 4"),
        (("train.batch_size=1",), "train.batch_size is 1; MixMIM mixes images, set it to 2 or more"),
    ],
)
def test_check_refuses_networks_views_masks_and_batches_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MixMIM.check(setup_of(*words))


@pytest.mark.thorough
def test_views_that_grow_are_covered_by_squares_of_the_same_side() -> None:
    words = ["train.batch_size=16", "train.epochs=4", "train.view_scale={0%: 0.5, 50%: 1}"]
    config = load_config("cifar10/mixmim", words)
    setup, classes = Setup.of(config, 48, 10), Classes.of(config)
    stages = view_stages(setup, classes, check_views(setup, classes))
    masks = [recipe.groups["global"][0].mask for _, recipe in stages]
    assert masks == [RandomMask(patch_size=8, ratio=0.5)] * 2
    method = small_mixmim()
    loss, _ = gradients(method, batch_of(side=8))
    assert loss.isfinite()
