"""One rank among 8, 64 and 1,024 on a pretended GPU: every method exchanges tensors of the GPU only, and what a rank
exchanges and holds grows at most as the number of images."""

import pytest

from raysl.config.load import load_config
from tests.fake_gpu.many_ranks import Rank, step_of
from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.methods.properties import METHODS, TINY

pytestmark = needs_pretended_gpu

WORLDS = (8, 64, 1024)
ROWS = 4
QUICK = ("moco",)
"""What is tried more often; the others are slow together."""
THOROUGH, SLOW = pytest.mark.thorough, pytest.mark.slow

OF_GRADIENTS = {"ddp": {"allreduce_"}, "zero1": {"allreduce_"}, "fsdp": {"_reduce_scatter_base_"}}
"""Collectives that exchange gradients, of what torch wraps."""


def small_step(name: str, world: int, *words: str, is_wrapped: bool = False) -> Rank:
    tiny = TINY[load_config(f"digits/{name}").backbone.name]
    return step_of(f"digits/{name}", world, ROWS, *tiny, *words, is_wrapped=is_wrapped)


@pytest.mark.parametrize("name", [pytest.param(name, marks=THOROUGH if name in QUICK else SLOW) for name in METHODS])
def test_what_a_rank_exchanges_and_holds_is_at_most_linear_in_ranks(name: str) -> None:
    ranks = {world: small_step(name, world) for world in WORLDS}
    for rank in ranks.values():
        assert [call for call in rank.calls if call.is_on_cpu] == []
        assert [event for event in rank.watch.events if event.is_wait or event.is_error] == []
        assert len(rank.calls) == len(ranks[8].calls), "not one for each rank"
    for fewer, more in ((8, 64), (64, 1024)):
        times = more / fewer
        assert ranks[more].num_bytes <= times * ranks[fewer].num_bytes
        assert ranks[more].peak <= times * ranks[fewer].peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "zero1", "fsdp"])
@pytest.mark.parametrize("name", ["simclr", "dino", "mae"])
def test_a_wrapped_method_exchanges_no_more_than_is_linear_in_ranks(name: str, kind: str) -> None:
    few, many = (small_step(name, world, f"train.parallel={kind}", is_wrapped=True) for world in (8, 64))
    for rank in (few, many):
        assert [call for call in rank.calls if call.is_on_cpu] == []
        assert [event for event in rank.watch.events if event.is_wait or event.is_error] == []
    assert len(many.calls) == len(few.calls), "not one for each rank"
    assert many.num_bytes <= 8 * few.num_bytes
    assert many.peak <= 8 * few.peak
    assert sum(call.num_bytes for call in few.calls if call.name in OF_GRADIENTS[kind]) >= 4 * few.num_weights


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "lars", "larc"])
def test_shards_are_updated_in_fp16(optimizer: str) -> None:
    """torch has no rule for its fused SGD of shards, whose step it would refuse."""
    words = "train.parallel=fsdp", "train.precision=fp16", f"optim={optimizer}"
    rank = small_step("simclr", 8, *words, is_wrapped=True)
    assert rank.watch.errors == []
    assert [call for call in rank.calls if call.is_on_cpu] == []
    places = {event.place.partition(":")[0] for event in rank.watch.waits}
    assert places <= {"optim/plain.py", "torch"}, "of the flag of an overflow alone"


@pytest.mark.thorough
def test_a_rank_sends_and_gets_its_own_number_of_images_for_mocos_shuffle() -> None:
    words = ("method.key_bn=shuffle", "train.sync_bn=false")
    few, many = (small_step("moco", world, *words) for world in (8, 1024))
    there, back = [call.num_bytes for call in many.calls if call.name == "alltoall_base_"]
    assert [call.num_bytes for call in few.calls if call.name == "alltoall_base_"] == [there, back]
    assert there % (2 * ROWS) == 0
    assert many.peak - few.peak < 1016 * there / 2 / 2, "half of the images of the other ranks"


@pytest.mark.parametrize(
    ("name", "sums"),
    [pytest.param("barlow_twins", 1, marks=THOROUGH), pytest.param("vicreg", 2, marks=SLOW)],
)
def test_a_covariance_is_exchanged_forward_only_and_its_rows_where_they_are_less(name: str, sums: int) -> None:
    """Of 32 images: 20 x 20 sums are less than the rows, 512 x 512 sums are not."""
    narrow, wide = (small_step(name, 8, f"method.dim={dim}") for dim in (20, 512))
    assert [call.num_bytes for call in narrow.calls].count(20 * 20 * 4) == sums
    others = [call.num_bytes for call in wide.calls if call.num_bytes != 4 * wide.num_weights]
    assert max(others) < 512 * 512 * 4 / 2
