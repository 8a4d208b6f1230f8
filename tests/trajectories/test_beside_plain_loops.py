"""Each other method takes the same four steps as a second implementation that was written from its paper in plain
loops: same weights, batches and SGD, in float64. All that a checkpoint holds is compared."""

import pytest

from raysl.components import ALIASES
from tests.tiers import each
from tests.trajectories.ours import assert_equal, course, train
from tests.trajectories.plain_convnets import CONVNETS
from tests.trajectories.plain_vits import VITS
from tests.trajectories.test_beside_lightly import PEERS

PLAIN = CONVNETS | VITS
FEW = ("data.limit=32", "train.batch_size=8")
"""A plain loop goes through all tokens of all images."""


def test_every_method_is_compared() -> None:
    compared = {name.partition("-")[0] for name in (*PEERS, *PLAIN)}
    assert compared == set(ALIASES["method"])


@pytest.mark.parametrize("name", each(PLAIN, now=("barlow_twins", "mae", "msn")))
def test_four_steps_end_with_the_weights_of_plain_loops(name: str) -> None:
    make, words = PLAIN[name]
    ours = course(name.partition("-")[0], *FEW, *words, num_steps=4)
    peer = make(ours)
    train(peer, ours)
    for what, found, expected in peer.pairs(ours.ended):
        assert_equal(found, expected, what)
