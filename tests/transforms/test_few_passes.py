"""Colour changes in few passes, which GPUs use, give what those of CPUs give."""

import pytest
import torch
from torch import Tensor

from raysl.transforms import few_passes, functional
from tests.fake_gpu.pretended import needs_pretended_gpu, pretended_gpu
from tests.fake_gpu.watch import CUDA

FACTORS = torch.tensor([0.0, 0.2, 0.6, 1.0, 1.3, 1.8, 3.0, 0.7, 1.5], dtype=torch.float64)
TURNS = torch.tensor([-0.5, -0.2, -0.05, 0.0, 0.01, 0.1, 0.37, 0.5, 0.2], dtype=torch.float64)
ROUNDING = 1e-6
HUE = 4e-6  # the other one divides differences of colours by small ones


@pytest.fixture(scope="module")
def colours() -> Tensor:
    """[9, 3, 8, 40]: random colours, near greys, greys, and all of three levels, which have ties."""
    generator = torch.Generator().manual_seed(0)
    free = torch.rand(9, 3, 200, generator=generator)
    grey = torch.rand(9, 1, 60, generator=generator)
    near = (grey + 1e-3 * torch.rand(9, 3, 60, generator=generator)).clamp(0, 1)
    levels = torch.tensor([0.0, 0.25, 1.0])
    tied = torch.cartesian_prod(levels, levels, levels).T[:, :26].expand(9, -1, -1)
    return torch.cat([free, near, grey[:, :, :34].expand(-1, 3, -1), tied], dim=2).view(9, 3, 8, 40)


def test_a_turn_of_the_hue_is_that_of_cpus(colours: Tensor) -> None:
    before = colours.clone()
    gap = (few_passes.turn_hue(colours, TURNS) - functional.adjust_hue(colours, TURNS)).abs().max()
    assert gap <= HUE
    assert torch.equal(colours, before)


def test_greys_keep_their_bits_at_any_turn(colours: Tensor) -> None:
    greys = colours[:, :1].expand(-1, 3, -1, -1).contiguous()
    assert torch.equal(few_passes.turn_hue(greys, TURNS), greys)


def test_blends_are_those_of_cpus(colours: Tensor) -> None:
    grey = few_passes.weighted(colours, functional.LUMA)
    assert (grey - functional._luma(colours)).abs().max() <= ROUNDING
    for other in (grey, grey[:, :, :1, :1], colours[:, :, :1, :1]):
        gap = few_passes.blend(colours, other, FACTORS) - functional._blend(colours, other, FACTORS)
        assert gap.abs().max() <= ROUNDING


def test_an_image_does_not_depend_on_its_batch(colours: Tensor) -> None:
    whole = few_passes.turn_hue(colours, TURNS)
    for row in range(len(colours)):
        assert torch.equal(whole[row : row + 1], few_passes.turn_hue(colours[row : row + 1], TURNS[row : row + 1]))


@needs_pretended_gpu
@pytest.mark.parametrize(
    ("change", "kernels", "planes"),
    [
        (functional.adjust_hue, 15, 68),
        (functional.adjust_saturation, 5, 21),
        (functional.adjust_brightness, 2, 12),
    ],
)
def test_a_change_on_a_gpu_takes_few_passes(change, kernels: int, planes: int) -> None:
    with pretended_gpu() as watch:
        images = torch.zeros(9, 3, 64, 64, device=CUDA)
        watch.clear()
        change(images, FACTORS)
        plane = images.nbytes / 3
        assert sum(watch.kernels.values()) <= kernels + 1, "and the copy of the factors"
        assert sum(watch.moved.values()) / plane < planes + 0.1
