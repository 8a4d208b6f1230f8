"""Networks of other libraries on two ranks: the gradient, the statistics and the weights of one process."""

import importlib.util

import pytest
import torch

from tests.methods.properties import Steps, exact_steps
from tests.rank_processes import RunRanks

NETWORKS = {
    "torchvision's MobileNet": ("backbone=torchvision", "backbone.model=mobilenet_v3_small"),
    "timm's ViT": (
        "backbone=timm",
        "backbone.model=vit_tiny_patch16_224",
        "backbone.image_size=32",
        "backbone.drop_path=0.1",
        "data.image_size=32",
    ),
}
HAS_TIMM = importlib.util.find_spec("timm") is not None
GENTLE = ("optim.lr=0.0001", "train.epochs=1")
"""Steps so small that differences of rounding do not grow from one to the next."""


def steps_of(names: list[str]) -> dict[str, Steps]:
    return {name: exact_steps("simclr", *NETWORKS[name], *GENTLE) for name in names}


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, run_ranks: RunRanks) -> list[dict[str, Steps]]:
    """The steps of one process, and those of each of two ranks, of the networks that were asked for."""
    here = [item for item in request.session.items if item.path == request.path and "found" in item.fixturenames]
    asked = [item.callspec.params["name"] for item in here if HAS_TIMM or "timm" not in item.callspec.params["name"]]
    return [steps_of(asked), *run_ranks(2, steps_of, asked, timeout=200)]


@pytest.mark.parametrize("name", NETWORKS)
def test_two_ranks_give_the_gradient_of_one_process(name: str, found: list[dict[str, Steps]]) -> None:
    if "timm" in name and not HAS_TIMM:
        pytest.skip("timm is not installed")
    alone, *ranks = (steps[name] for steps in found)
    for many in ranks:
        assert len(many["grads"]) == len(alone["grads"]) == 4
        for own, expected in zip(many["grads"], alone["grads"], strict=True):
            assert own.keys() == expected.keys()
            scale = max(grad.abs().max().item() for grad in expected.values())
            for key, grad in expected.items():
                assert (own[key] - grad).abs().max() <= 1e-9 * scale, key
        for key, value in alone["ended"].items():
            torch.testing.assert_close(many["ended"][key], value, rtol=1e-8, atol=1e-8)
        assert [key for key in alone["grads"][0] if torch.equal(alone["begun"][key], alone["ended"][key])] == []
