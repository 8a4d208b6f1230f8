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
QUICK = ("barlow_twins", "moco")
"""What the default tier has; the others are slow together."""


def small_step(name: str, world: int, *words: str) -> Rank:
    return step_of(f"digits/{name}", world, ROWS, *TINY[load_config(f"digits/{name}").backbone.name], *words)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]
)
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


def test_a_rank_sends_and_gets_its_own_number_of_images_for_mocos_shuffle() -> None:
    words = ("method.key_bn=shuffle", "train.sync_bn=false")
    few, many = (small_step("moco", world, *words) for world in (8, 1024))
    there, back = [call.num_bytes for call in many.calls if call.name == "alltoall_base_"]
    assert [call.num_bytes for call in few.calls if call.name == "alltoall_base_"] == [there, back]
    assert there % (2 * ROWS) == 0
    assert many.peak - few.peak < 1016 * there / 2 / 2, "half of the images of the other ranks"


@pytest.mark.parametrize(("name", "sums"), [("barlow_twins", 1), ("vicreg", 2)])
def test_a_covariance_is_exchanged_forward_only_and_its_rows_where_they_are_less(name: str, sums: int) -> None:
    """Of 32 images: 20 x 20 sums are less than the rows, 512 x 512 sums are not."""
    narrow, wide = (small_step(name, 8, f"method.dim={dim}") for dim in (20, 512))
    assert [call.num_bytes for call in narrow.calls].count(20 * 20 * 4) == sums
    others = [call.num_bytes for call in wide.calls if call.num_bytes != 4 * wide.num_weights]
    assert max(others) < 512 * 512 * 4 / 2
