"""Patches that a transformer leaves out in training."""

from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.data.batch import Batch
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import drop_slots, keyed_draws
from raysl.nn.ema import Teacher
from raysl.nn.patch_drop import NeedsAllPatches, PatchDrop, dropping_patches, num_kept


def small(**settings: Any) -> ViT:
    torch.manual_seed(0)
    network = ViT(ViT.Config(width=32, depth=2, heads=2, patch_size=4, image_size=16, **settings))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return network


def images_of(num: int, width: int = 16) -> Tensor:
    return torch.randn(num, 3, 16, width, generator=torch.Generator().manual_seed(1))


def batch_of(first: int, end: int, epoch: int = 0) -> Batch:
    index = torch.arange(first, end)
    return Batch({}, index, torch.full_like(index, -1), epoch=epoch)


def kept(batch: Batch, num_views: int = 1, share: float = 0.5) -> Tensor:
    """Return the patches that a network keeps of the views of a batch, [B, V, K]."""
    drop = PatchDrop(slot=3)
    with dropping_patches(share), keyed_draws(batch, drop_slots(drop)):
        return drop(torch.zeros(len(batch) * num_views, 1), 16).unflatten(0, (len(batch), num_views))


def features(network: ViT, images: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return features of images without a share of their patches, and the kept ones."""
    chosen: list[Tensor] = []
    handle = network.patch_drop.register_forward_hook(lambda _module, _inputs, keep: chosen.append(keep))
    with dropping_patches(share), keyed_draws(batch_of(0, len(images)), drop_slots(network)):
        h = network(images)
    handle.remove()
    return h, chosen[0]


@pytest.mark.parametrize("position", ["learned", "sincos", "rope", "relative"])
@pytest.mark.parametrize("output", ["class", "class_mean"])
def test_features_are_those_of_the_kept_patches_at_their_own_places(position: str, output: str) -> None:
    network, images = small(position=position, output=output, num_registers=2), images_of(3, width=24)
    h, keep = features(network, images, share=0.75)
    assert keep.shape == (3, 6)
    tokens = network.visible_tokens(images, keep)
    expected = [tokens[:, 0], *([tokens[:, 3:].mean(dim=1)] if output == "class_mean" else [])]
    torch.testing.assert_close(h, torch.cat(expected, dim=1))
    assert not torch.allclose(h, network(images))


def test_the_first_block_gets_each_kept_token_with_its_position() -> None:
    network, images = small(), images_of(2)
    inputs: list[Tensor] = []
    network.blocks[0].register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    _, keep = features(network, images, share=0.5)
    assert network.pos_embed is not None
    positions, weight, bias = network.pos_embed[0], network.patch_embed.proj.weight, network.patch_embed.proj.bias
    for image, tokens, places in zip(images, inputs[0], keep, strict=True):
        torch.testing.assert_close(tokens[0], network.cls_token[0, 0] + positions[0])
        for token, place in zip(tokens[1:], places.tolist(), strict=True):
            row, column = divmod(place, 4)
            patch = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            expected = (weight * patch).sum(dim=(1, 2, 3)) + bias + positions[1 + place]
            torch.testing.assert_close(token, expected)


def test_patches_are_ascending_distinct_and_evenly_drawn() -> None:
    keep = kept(batch_of(0, 4000), share=0.75)[:, 0]  # [B, 4]
    assert (keep.diff(dim=1) > 0).all()
    shares = keep.flatten().bincount(minlength=16) / len(keep)
    assert shares.tolist() == pytest.approx([0.25] * 16, abs=0.03)


def test_a_view_keeps_the_same_patches_on_whatever_rank_it_is() -> None:
    whole = kept(batch_of(0, 50), num_views=2)
    assert torch.equal(torch.cat([kept(batch_of(0, 17), 2), kept(batch_of(17, 50), 2)]), whole)
    assert not torch.equal(whole[:, 0], whole[:, 1]), "views of a sample draw each for itself"
    assert not torch.equal(kept(batch_of(0, 50, epoch=1), 2), whole)


def test_a_larger_share_keeps_a_part_of_the_same_patches() -> None:
    some, few = kept(batch_of(0, 9), share=0.25)[:, 0], kept(batch_of(0, 9), share=0.75)[:, 0]
    assert all(set(less) < set(more) for less, more in zip(few.tolist(), some.tolist(), strict=True))


def test_all_patches_stay_outside_of_a_step_in_evaluation_and_in_a_teacher() -> None:
    network, images = small(), images_of(6)
    teacher, whole = Teacher(network), network(images)
    with dropping_patches(0.5):
        assert torch.equal(teacher(images), whole)
        assert torch.equal(teacher.module.tokens(images)[:, 0], whole)
        assert torch.equal(network.eval()(images), whole)
    with dropping_patches(0.0):
        assert torch.equal(network.train()(images), whole)


def test_single_tokens_are_refused_while_patches_are_left_out() -> None:
    network, images = small(), images_of(1)
    keep, prefix = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.bool)
    calls = [
        lambda: network.tokens(images),
        lambda: network.visible_tokens(images, keep),
        lambda: network.visible_maps(images, keep),
        lambda: network.causal_tokens(images, prefix),
        lambda: network.stages(images, ["norm"]),
    ]
    for call in calls:
        with dropping_patches(0.5), pytest.raises(NeedsAllPatches, match="this step reads single tokens"):
            call()
        call()


def test_all_weights_but_those_of_unseen_places_get_a_gradient() -> None:
    network = small(position="learned")
    h, keep = features(network, images_of(1), share=0.5)
    h.sum().backward()  # type: ignore[no-untyped-call]
    assert network.pos_embed is not None
    is_seen = torch.zeros(16, dtype=torch.bool).scatter(0, keep[0], True)
    assert torch.equal(network.pos_embed.grad[0, 1:].abs().sum(dim=1) > 0, is_seen)
    assert all(weight.grad is not None for weight in network.parameters())


@pytest.mark.parametrize(("num_patches", "share", "num"), [(196, 0.5, 98), (196, 0.0, 196), (1, 0.9, 1), (9, 0.99, 1)])
def test_the_number_of_kept_patches_is_rounded_and_at_least_one(num_patches: int, share: float, num: int) -> None:
    assert num_kept(num_patches, share) == num
