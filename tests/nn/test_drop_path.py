"""Stochastic depth."""

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.data.batch import Batch
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import DropPath, keyed_draws
from raysl.nn.ema import Teacher

RATE = 0.25


def batch_of(first: int, end: int, epoch: int = 0) -> Batch:
    index = torch.arange(first, end)
    return Batch({}, index, torch.full_like(index, -1), epoch=epoch)


def factors(batch: Batch, num_views: int = 1, place: int = 0) -> Tensor:
    """What a drop path makes of ones, [B, V]."""
    with keyed_draws(batch):
        return DropPath(RATE, place)(torch.ones(len(batch) * num_views, 1)).view(len(batch), num_views)


def test_it_leaves_out_whole_samples_and_keeps_the_mean() -> None:
    drop = DropPath(RATE, 0)
    x = torch.ones(4000, 3, 2)
    with keyed_draws(batch_of(0, 4000)):
        out = drop(x)
    kept = out[:, 0, 0]
    assert torch.equal(out, kept[:, None, None].expand_as(out))
    assert kept.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert (kept == 0).float().mean().item() == pytest.approx(RATE, abs=0.02)
    assert drop.eval()(x) is x


@pytest.mark.parametrize("num_views", [1, 3])
def test_what_is_drawn_belongs_to_the_sample_on_whatever_rank_it_is(num_views: int) -> None:
    whole = factors(batch_of(0, 50), num_views)
    assert torch.equal(torch.cat([factors(batch_of(0, 17), num_views), factors(batch_of(17, 50), num_views)]), whole)
    assert not torch.equal(factors(batch_of(0, 50, epoch=1), num_views), whole)
    assert not torch.equal(factors(batch_of(0, 50), num_views, place=1), whole)
    if num_views > 1:
        assert len(whole.unique(dim=1).T) == num_views, "views of a sample draw each for itself"


def test_a_second_pass_draws_again_and_a_second_step_begins_anew() -> None:
    drop, x = DropPath(RATE, 0), torch.ones(50, 1)
    with keyed_draws(batch_of(0, 50)):
        first, second = drop(x), drop(x)
    assert not torch.equal(first, second)
    with keyed_draws(batch_of(0, 50)):
        assert torch.equal(drop(x), first)


@pytest.mark.parametrize("rows", [50, 51])
def test_rows_of_no_batch_are_drawn_for_by_torchs_generator(rows: int) -> None:
    drop, x = DropPath(RATE, 0), torch.ones(rows, 1)
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        if rows == 50:
            made.append(drop(x))
        else:
            with keyed_draws(batch_of(0, 50)):
                made.append(drop(x))
    assert torch.equal(*made)
    torch.manual_seed(1)
    assert not torch.equal(drop(x), made[0])


def test_a_rank_without_rows_has_nothing_to_drop() -> None:
    with keyed_draws(batch_of(0, 0)):
        assert DropPath(RATE, 0)(torch.ones(0, 1)).shape == (0, 1)


def test_halves_of_a_batch_give_the_features_of_the_whole() -> None:
    torch.manual_seed(0)
    network = ViT(ViT.Config(width=16, depth=3, heads=2, patch_size=4, image_size=8, drop_path=0.5)).double()
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 3, 8, 8)))
    with keyed_draws(batch_of(0, 10)):
        whole = network(images)
    with keyed_draws(batch_of(0, 4)):
        first = network(images[:4])
    with keyed_draws(batch_of(4, 10)):
        rest = network(images[4:])
    torch.testing.assert_close(torch.cat([first, rest]), whole, rtol=0, atol=1e-12)
    assert not torch.equal(whole, network(images))


def test_a_teacher_leaves_out_nothing() -> None:
    network = ViT(ViT.Config(width=16, depth=3, heads=2, patch_size=4, image_size=8, drop_path=0.5))
    teacher, images = Teacher(network).train(), torch.ones(4, 3, 8, 8)
    assert torch.equal(teacher(images), network.eval()(images))


def test_a_compiled_step_computes_the_same_numbers_from_keys() -> None:
    batch, places = batch_of(3, 20, epoch=2), [0, 5]
    layers = [DropPath(RATE, place) for place in (*places, 5)]
    results = []
    for is_compiled in (False, True):
        with keyed_draws(batch, places, is_compiled):
            results.append(torch.cat([layer(torch.ones(len(batch) * 3, 1)) for layer in layers]))
    assert torch.equal(*results)
