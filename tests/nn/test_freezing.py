"""Frozen stages: what neither trains nor moves, for every kind of network, on any number of ranks, in teachers too."""

import copy
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.freezing import freeze
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.nn.ema import Teacher
from raysl.plan.setup import Setup
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.methods.properties import FEW, METHODS, Steps, exact_steps, small
from tests.rank_processes import RunRanks
from tests.tiers import each

HAS_TIMM = importlib.util.find_spec("timm") is not None
needs_timm = pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed")
SMALL: dict[str, dict[str, Any]] = {
    "resnet": {"depth": 10, "width": 8, "stem": "cifar"},
    "vit": {"width": 24, "heads": 3, "depth": 3, "patch_size": 8, "image_size": 32, "drop_path": 0.5},
    "torchvision": {"model": "mobilenet_v3_small"},
    "timm": {"model": "regnety_002"},
}
NAMES = ["resnet", "vit", "torchvision", pytest.param("timm", marks=needs_timm)]
WORDS = ("optim.lr=0.01", "train.epochs=1")


def made(name: str) -> Backbone:
    torch.manual_seed(0)
    kind = resolve("backbone", name)
    network: Backbone = kind(kind.Config(**SMALL[name]))
    return network


def trained(network: Backbone) -> dict[str, Tensor]:
    """The network's tensors after a pass in training mode that moves all parameters with a gradient."""
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    network.train()
    network(images).square().mean().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= 0.1
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "place"),
    [
        *[(name, place) for name in ("resnet", "vit") for place in (0, 1, -2)],
        ("torchvision", 1),
        pytest.param("timm", -2, marks=needs_timm),
    ],
)
def test_what_a_stage_is_computed_from_stays_as_it_is_and_the_rest_trains(name: str, place: int) -> None:
    network = made(name)
    stages = list(network.stage_widths)
    stage = stages[: -1 if name != "vit" else -3][place]
    before = {key: value.clone() for key, value in network.state_dict().items()}
    freeze(network, [stage])
    images = torch.randn(2, 3, 32, 32)
    expected = {key: value.detach() for key, value in made(name).eval().stages(images, [stage]).items()}
    after = trained(network)
    assert torch.equal(network.train().stages(images, [stage])[stage], expected[stage])
    moved = {key for key, value in after.items() if not torch.equal(before[key], value)}
    told = {key for key, parameter in network.named_parameters() if parameter.requires_grad}
    fresh = made(name)
    fresh.stages(images, [stage])[stage].sum().backward()
    assert told == {key for key, parameter in fresh.named_parameters() if parameter.grad is None}
    assert moved & dict(network.named_parameters()).keys() == told
    assert told
    still = {key.rpartition(".")[0] for key, value in network.named_buffers() if key in before and key not in moved}
    frozen = {key.rpartition(".")[0] for key in dict(network.named_parameters()).keys() - told}
    norms = {key for key, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert still & norms == frozen & norms


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_all_freezes_the_whole_network(name: str) -> None:
    network = made(name)
    freeze(network, ["all"])
    images = torch.randn(2, 3, 32, 32)
    assert not any(module.training for module in network.train().modules())
    assert not network(images).requires_grad
    assert torch.equal(network(images), made(name).eval()(images))


@pytest.mark.thorough
def test_the_deepest_of_several_stages_counts_and_no_name_freezes_nothing() -> None:
    one, several, none = made("resnet"), made("resnet"), made("resnet")
    freeze(one, ["res3"])
    freeze(several, ["res3", "stem"])
    freeze(none, [])
    assert one.frozen_modules == several.frozen_modules == ("bn1", "conv1", "layer1", *_inside(one, "layer1", "layer2"))
    assert none.frozen_modules == ()
    assert all(module.training for module in none.train().modules())
    assert [name for name, module in one.train().named_children() if module.training] == [
        "relu", "maxpool", "layer3", "layer4",
    ]  # fmt: skip


def _inside(network: Backbone, *names: str) -> list[str]:
    found = [f"{name}.{inner}" for name in names for inner, _ in network.get_submodule(name).named_modules() if inner]
    with_state = {name for name, module in network.named_modules() if list(module.state_dict())}
    return sorted({"layer2", *(name for name in found if name in with_state)})


def test_a_copy_and_a_synchronised_network_stay_frozen() -> None:
    network = made("resnet")
    freeze(network, ["res2"])
    for other in (copy.deepcopy(network), convert_sync_batch_norm(copy.deepcopy(network))):
        nn.Sequential(other).train()
        assert not other.bn1.training
        assert other.layer2[0].bn1.training
        assert not other.conv1.weight.requires_grad


def test_a_teacher_is_frozen_alike() -> None:
    network = made("resnet")
    freeze(network, ["res2"])
    teacher = Teacher(network)
    before = {key: value.clone() for key, value in teacher.module.state_dict().items()}
    trained(network)
    teacher.train()(torch.randn(4, 3, 32, 32))
    teacher.update(network, 0.3)
    moved = {
        key.split(".")[0] for key, value in teacher.module.state_dict().items() if not torch.equal(value, before[key])
    }
    assert moved == {"layer2", "layer3", "layer4"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "stage"), [("simclr", "res3"), ("simsiam", "res4"), ("dino", "stem"), ("mae", "block1")]
)
def test_an_optimizer_has_what_is_not_frozen(method: str, stage: str) -> None:
    state = TrainState.create(small(method, f"backbone.freeze={stage}").setup)
    held = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in state.method.parameters() if p.requires_grad}
    frozen = {name for name, p in state.method.backbone.named_parameters() if not p.requires_grad}
    assert frozen
    assert state.method.backbone.frozen_modules


def test_a_method_without_weights_of_its_own_has_nothing_to_train_beside_a_frozen_network() -> None:
    with pytest.raises(ConfigError, match="method=directclr has no weights beside the backbone's; freeze fewer stages"):
        exact_steps("directclr", *WORDS, "backbone.freeze=all")


PALETTE = ("backbone.patch_embed.colors", "backbone.patch_embed.table")
"""What iGPT finds of the images before the first epoch, and no gradient changes."""


@pytest.mark.parametrize("method", each((name for name in METHODS if name not in ("directclr", "nepa")), now=FEW))
def test_every_method_trains_what_it_has_beside_a_frozen_network(method: str) -> None:
    run = exact_steps(method, *WORDS, "backbone.freeze=all", "data.limit=32")
    moved = [key for key, value in run["begun"].items() if not torch.equal(value, run["ended"][key])]
    names = tuple(key.removeprefix("backbone.") for key in run["begun"] if key.startswith("backbone."))
    moved = [key for key in moved if key not in PALETTE]
    assert [key for key in moved if key.startswith(("backbone.", "teacher.")) and key.endswith(names)] == []
    assert run["grads"][0]
    assert set(run["grads"][0]) & set(moved)


def steps(words: Sequence[str]) -> Steps:
    return exact_steps("moco", *words)


def test_two_ranks_give_the_gradient_of_one_process_and_nothing_frozen_moves(run_ranks: RunRanks) -> None:
    words = (*WORDS, "backbone.freeze=res2")
    alone, *ranks = steps(words), *run_ranks(2, steps, words)
    kept = [key for key, value in alone["begun"].items() if torch.equal(value, alone["ended"][key])]
    for inner in ("conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked", "layer1.0.bn2.running_var"):
        assert {f"backbone.{inner}", f"teacher.module.0.{inner}"} <= set(kept)
    assert not any("layer2" in key for key in kept)
    assert not any("layer1" in key for key in alone["grads"][0])
    for many in ranks:
        for own, expected in zip(many["grads"], alone["grads"], strict=True):
            assert own.keys() == expected.keys()
            for key, grad in expected.items():
                torch.testing.assert_close(own[key], grad, rtol=1e-8, atol=1e-10)


class Mine(Backbone):
    """Names no stages, and has a normalisation without weights."""

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        name: str = "mine"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.feature_dim = 3
        self.norm = nn.BatchNorm2d(3, affine=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(images).mean(dim=(2, 3)) * self.scale

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self(images) for name in names}


class Told(Mine):
    """Names them, and reads a value as it computes: no pass without values."""

    @property
    def stage_widths(self) -> dict[str, int]:
        return {"norm": 3, "scaled": 3}

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        if images.sum().item() > 1e9:
            raise AssertionError
        normed = self.norm(images)
        found = {"norm": normed}
        if "scaled" in names:
            found["scaled"] = normed.mean(dim=(2, 3)) * self.scale
        return {name: found[name] for name in names}


def test_a_network_of_ones_own_is_frozen_too() -> None:
    mine, told = Mine(Mine.Config()), Told(Mine.Config())
    with pytest.raises(ConfigError, match="no stage 'norm' in mine; it names none; all freezes all of it"):
        freeze(mine, ["norm"])
    freeze(mine, ["all"])
    assert not mine.train().norm.training
    freeze(told, ["norm"])
    assert not told.train().norm.training
    assert told.training
    assert told.scale.requires_grad
    freeze(told, ["scaled"])
    assert not told.scale.requires_grad


def test_an_unknown_stage_is_refused_before_a_run_with_those_there_are() -> None:
    config = load_config("quickstart", ["backbone.freeze=[stem,res9]"])
    with pytest.raises(
        ConfigError,
        match=r"backbone.freeze: no stage 'res9' in resnet; its stages: conv1, stem, .*; all freezes all",
    ):
        prepare(config)


class Headless(SimCLR):
    """Has no weights of its own."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        del self.projector


def test_a_method_without_a_head_cannot_train_a_frozen_network() -> None:
    words = [f"method.name={__name__}:Headless", "backbone.freeze=all"]
    with pytest.raises(
        ConfigError, match=r"backbone.freeze=\['all'\] leaves nothing to train: method=.*Headless has no"
    ):
        TrainState.create(Setup.of(load_config("quickstart", words), 256, 10))
    assert TrainState.create(Setup.of(load_config("quickstart", words[1:]), 256, 10)).optimizer.param_groups
