"""Augmentation on a GPU: what it costs in kernels and bytes, and that it copies only from pinned memory."""

import pytest

from tests.fake_gpu.augmentation import augmented
from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.watch import TO_GPU_LATE

pytestmark = needs_pretended_gpu
THOROUGH, SLOW = pytest.mark.thorough, pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=THOROUGH if name == "simclr" else SLOW) for name in ("simclr", "dino", "byol")]
)
def test_parameters_come_from_pinned_memory(name: str) -> None:
    assert {event.kind for event in augmented(name, 64).events} == {TO_GPU_LATE}


@pytest.mark.thorough
def test_simclrs_views_of_a_batch_stay_under_their_bound_of_bytes() -> None:
    found = augmented("simclr", 256)
    assert found.kernels < 320
    assert found.num_bytes < 26e9, "13 ms of an H100's memory"


@pytest.mark.thorough
def test_views_with_the_same_transforms_take_the_kernels_of_one() -> None:
    one, three = augmented("simclr", 16), augmented("dino", 16)  # DINO: two large crops that differ, and small ones
    assert three.kernels < 3.5 * one.kernels
