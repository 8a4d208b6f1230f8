"""What a step copies to a GPU: keys of samples, and neither thousands of numbers for each nor one copy a block."""

from collections.abc import Sequence

import pytest

from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.training import Seen, trained
from tests.fake_gpu.watch import TO_GPU, TO_GPU_LATE, TO_GPU_PAGEABLE, Event

pytestmark = needs_pretended_gpu

VIT = ("backbone=vit", "backbone.width=24", "backbone.heads=3", "backbone.patch_size=4", "backbone.drop_path=0.3")
ONE_STEP = "train.end=1st"
"""Of 16 images."""


def copies(seen: Seen) -> Sequence[Event]:
    """Copies to the GPU while the network runs."""
    kinds = {TO_GPU, TO_GPU_LATE, TO_GPU_PAGEABLE}
    return [event for event in seen.watch.events if event.kind in kinds and event.phase == "forward and backward"]


@pytest.mark.parametrize(
    ("name", "draws"),
    [pytest.param("npid", 1, marks=pytest.mark.thorough), pytest.param("pirl", 2, marks=pytest.mark.slow)],
)
def test_negatives_are_drawn_on_the_gpu(name: str, draws: int) -> None:
    found = copies(trained(name, "method.num_negatives=32000", ONE_STEP))
    assert {event.kind for event in found} == {TO_GPU_LATE}
    assert sum(event.num_bytes for event in found) == draws * 16 * 8, "a key for each image"


@pytest.mark.thorough
def test_drop_path_draws_once_for_all_blocks() -> None:
    shallow, deep = (copies(trained("dino", *VIT, f"backbone.depth={depth}", ONE_STEP)) for depth in (2, 4))
    assert len(shallow) == len(deep) == 2, "for large and for small crops"
    assert {event.kind for event in deep} == {TO_GPU_LATE}
    assert sum(event.num_bytes for event in deep) == 3 * sum(event.num_bytes for event in shallow), "1 and 3 blocks"
