"""Each method that lightly has an example of takes the same eight steps as a model put together from lightly's own
heads, losses, momentum updates and masked transformers: same weights, batches and SGD, in float64."""

import pytest
import torch

from raysl.components import ALIASES
from tests.tiers import each
from tests.trajectories.lightly_peers import CONVNET_PEERS, NOT_BESIDE
from tests.trajectories.lightly_vits import VIT_PEERS
from tests.trajectories.ours import assert_equal, course, train

PEERS = CONVNET_PEERS | VIT_PEERS
EXAMPLES = {
    "aim", "barlow_twins", "byol", "dcl", "dino", "dino_v2", "fastsiam", "ibot", "ijepa", "mae", "moco", "msn", "nnclr",
    "pmsn", "simclr", "simmim", "simsiam", "smog", "swav", "tico", "vicreg",
}  # fmt: skip
"""Methods of raysl that lightly 1.6.0 has an example of."""
LOSSES = {"macl"}
"""Methods of raysl that lightly 1.6.0 has the loss of, which goes with the networks of another example."""


def test_every_method_that_lightly_has_an_example_of_is_compared_or_says_why_not() -> None:
    assert set(ALIASES["method"]) >= EXAMPLES
    compared = {name.partition("-")[0] for name in PEERS}
    assert compared | set(NOT_BESIDE) == EXAMPLES | LOSSES
    assert not compared & set(NOT_BESIDE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", each(PEERS, now=("simclr", "moco", "swav", "vicreg")))
def test_eight_steps_end_with_the_weights_of_lightly(name: str) -> None:
    make, words = PEERS[name]
    ours = course(name.partition("-")[0], *words)
    peer = make(ours)
    train(peer, ours)
    begun, ended = (next(method.parameters()) for method in (ours.begun, ours.ended))
    assert not torch.equal(begun, ended)
    for what, found, expected in peer.pairs(ours.ended):
        assert_equal(found, expected, what)
