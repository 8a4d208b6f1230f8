"""Learning rates by depth, rates and decay of heads, and what is left out of decay by kind."""

from typing import Any

import pytest
import torch
from torch import nn

from raysl.config.load import load_config
from raysl.config.schema import OptimConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.swin import Swin
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.nn.backbones.vit import ViT
from raysl.optim.adam import AdamW
from raysl.optim.build import build_optimizer, set_schedules
from raysl.optim.groups import split_groups
from raysl.optim.sgd import SGD
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train.prepare import prepare
from tests.optim.probe import Probe

COURSE: dict[str, Any] = {"lr": 2.0, "lr_scaling": "none", "warmup": Duration.parse("0ep")}


def on(backbone: Backbone) -> Probe:
    method = Probe()
    method.backbone = backbone  # type: ignore[assignment]
    return method


def rates(method: Probe, optim: OptimConfig) -> dict[str, float]:
    """The rate of each parameter at the peak."""
    optimizer = build_optimizer(method, optim)
    set_schedules(optimizer, optim, Step(0, 10, 5), batch_size=64)
    of = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    found = {name: of[id(parameter)] for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert len(of) == len(found)
    return found


def decays(method: Probe, optim: OptimConfig) -> dict[str, float]:
    optimizer = build_optimizer(method, optim)
    set_schedules(optimizer, optim, Step(10, 10, 5), batch_size=64)
    of = {id(parameter): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    return {name: of[id(parameter)] for name, parameter in method.named_parameters()}


def test_layers_of_a_vit_are_its_blocks() -> None:
    """decay^(L + 1 - i): BEiT's and MAE's fine-tuning."""
    vit = ViT(ViT.Config(width=12, depth=12, heads=3, patch_size=8, image_size=16, num_registers=2, mask_token=True))
    assert vit.num_layers == 12
    names = {
        "patch_embed.proj.weight": 0, "cls_token": 0, "pos_embed": 0, "reg_token": 0, "mask_token": 0,
        "blocks.0.attn.qkv.weight": 1, "blocks.10.mlp.fc1.bias": 11, "blocks.11.norm1.weight": 12, "norm.weight": 13,
    }  # fmt: skip
    assert {name: vit.layer_of(name) for name in names} == names
    found = rates(on(vit), AdamW.Config(**COURSE, layer_decay=0.75))
    for name, layer in names.items():
        assert found[f"backbone.{name}"] == pytest.approx(2.0 * 0.75 ** (13 - layer)), name
    assert found["head.weight"] == found["head.bias"] == 2.0


def test_patches_have_a_share_of_the_rate() -> None:
    """DINOv2: a fifth, on top of the decay by layers."""
    vit = ViT(ViT.Config(width=12, depth=2, heads=3, patch_size=8, image_size=16))
    found = rates(on(vit), AdamW.Config(**COURSE, patch_lr_scale=0.2))
    assert {name for name, rate in found.items() if rate != 2.0} == {f"backbone.patch_embed.proj.{kind}" for kind in
                                                                    ("weight", "bias")}  # fmt: skip
    assert found["backbone.patch_embed.proj.weight"] == pytest.approx(0.4)
    both = rates(on(vit), AdamW.Config(**COURSE, patch_lr_scale=0.2, layer_decay=0.5))
    assert both["backbone.patch_embed.proj.bias"] == pytest.approx(0.2 * both["backbone.cls_token"])


def test_a_rate_of_patches_is_refused_where_there_are_none() -> None:
    told = r"optim.patch_lr_scale=0.2 is for the map from patches to tokens, and ResNet has none; take backbone=vit"
    with pytest.raises(ConfigError, match=told):
        build_optimizer(on(ResNet(ResNet.Config(depth=18, width=4))), SGD.Config(patch_lr_scale=0.2))
    with pytest.raises(ConfigError, match=told):
        prepare(load_config("quickstart", ["optim.patch_lr_scale=0.2"]))


def test_layers_of_a_resnet_are_its_stages() -> None:
    resnet = ResNet(ResNet.Config(depth=18, width=4))
    names = {"conv1.weight": 0, "bn1.bias": 0, "layer1.1.conv2.weight": 1, "layer2.0.conv1.weight": 2,
             "layer4.1.bn2.weight": 4}  # fmt: skip
    assert {name: resnet.layer_of(name) for name in names} == names
    found = rates(on(resnet), SGD.Config(**COURSE, layer_decay=0.5))
    assert [found[f"backbone.{name}"] for name in names] == pytest.approx([2 / 32, 2 / 32, 2 / 16, 2 / 8, 2 / 2])
    short = ResNet(ResNet.Config(depth=18, width=4, num_stages=2))
    assert rates(on(short), SGD.Config(**COURSE, layer_decay=0.5))["backbone.layer2.0.conv1.weight"] == 1.0


def test_layers_of_a_swin_are_its_blocks() -> None:
    swin = Swin(Swin.Config(width=32, depths=(2, 1), windows=(4,), image_size=32))
    names = {"patch_embed.norm.weight": 0, "layers.0.blocks.0.norm1.bias": 1,
             "layers.0.blocks.1.attn.relative_position_bias_table": 2, "layers.0.downsample.reduction.weight": 3,
             "layers.1.blocks.0.mlp.fc1.weight": 3, "norm.weight": 4}  # fmt: skip
    assert swin.num_layers == 3
    assert {name: swin.layer_of(name) for name in names} == names
    found = rates(on(swin), AdamW.Config(**COURSE, layer_decay=0.5))
    assert [found[f"backbone.{name}"] for name in names] == pytest.approx([2 / 16, 2 / 8, 2 / 4, 2 / 2, 2 / 2, 2])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "num_layers", "names"),
    [
        ("resnet18", 4, {"conv1.weight": 0, "bn1.weight": 0, "layer1.0.bn1.bias": 1, "layer4.1.conv2.weight": 4}),
        ("convnext_tiny", 3, {"features.0.0.weight": 0, "features.1.0.block.0.weight": 0, "features.2.0.weight": 1,
                              "features.7.2.layer_scale": 3, "classifier.0.weight": 3}),
        ("swin_t", 3, {"features.0.0.weight": 0, "features.5.0.norm1.weight": 2, "norm.weight": 3}),
        ("vit_b_16", 12, {"class_token": 0, "conv_proj.weight": 0, "encoder.pos_embedding": 0, "encoder.ln.weight": 12,
                          "encoder.layers.encoder_layer_0.ln_1.bias": 1,
                          "encoder.layers.encoder_layer_1.ln_1.bias": 2,
                          "encoder.layers.encoder_layer_11.mlp.0.weight": 12}),
    ],
)  # fmt: skip
def test_layers_of_networks_of_torchvision(model: str, num_layers: int, names: dict[str, int]) -> None:
    network = TorchvisionModel.without_weights(TorchvisionModel.Config(model=model))
    assert network.num_layers == num_layers
    assert {name: network.layer_of(f"network.{name}") for name in names} == names
    layers = [network.layer_of(name) for name, _ in network.named_parameters()]
    assert set(layers) == set(range(num_layers + 1))


@pytest.mark.thorough
def test_layers_of_networks_of_timm() -> None:
    pytest.importorskip("timm")
    from raysl.nn.backbones.timm_models import TimmModel

    for model, names in {
        "resnet18": {"conv1.weight": 0, "layer2.0.bn1.weight": 2, "layer4.1.bn2.bias": 4},
        "vit_tiny_patch16_224": {"cls_token": 0, "blocks.11.mlp.fc2.bias": 12, "norm.weight": 12},
    }.items():
        network = TimmModel.without_weights(TimmModel.Config(model=model))
        assert {name: network.layer_of(f"network.{name}") for name in names} == names
        assert network.num_layers == max(names.values())


def test_a_backbone_without_layers_is_refused_on_the_driver() -> None:
    told = r"optim.layer_decay=0.75 needs a backbone that tells .*Tokens does not; .*leave layer_decay out"
    with pytest.raises(ConfigError, match=told):
        build_optimizer(Probe(), SGD.Config(layer_decay=0.75))
    path = "tests/optim/probe_backbone.py:Flat"
    config = load_config("quickstart", [f"backbone.name={path}", "optim.layer_decay=0.75"])
    with pytest.raises(ConfigError, match="Flat does not"):
        prepare(config)


def test_the_driver_knows_the_layers_before_there_are_weights() -> None:
    setup = Setup.of(load_config("quickstart", ["optim.layer_decay=0.5"]), 2000)
    assert setup.backbone.num_layers == setup.config.backbone.num_stages  # type: ignore[attr-defined]


def test_a_layer_out_of_range_is_the_backbones_mistake() -> None:
    resnet = ResNet(ResNet.Config(depth=18, width=4))
    resnet.layer_of = lambda name: 7  # type: ignore[method-assign]
    with pytest.raises(
        ValueError, match=r"ResNet.layer_of\('conv1.weight'\) is 7; its layers are 0 to 4, and one more"
    ):
        build_optimizer(on(resnet), SGD.Config(layer_decay=0.5))


def test_heads_have_a_rate_and_a_decay_of_their_own() -> None:
    optim = SGD.Config(**COURSE, head_lr=10.0, weight_decay=0.1, weight_decay_end=0.4, head_weight_decay=0.03)
    found = rates(Probe(), optim)
    assert {rate for name, rate in found.items() if name.startswith("head")} == {10.0}
    assert {rate for name, rate in found.items() if name.startswith("backbone")} == {2.0}
    decayed = decays(Probe(), optim)
    assert decayed["head.weight"] == 0.03
    assert decayed["backbone.layer.weight"] == pytest.approx(0.4)
    assert decayed["head.bias"] == decayed["backbone.layer.bias"] == 0.0
    none = decays(Probe(), SGD.Config(**COURSE, weight_decay=0.1, head_weight_decay=0.0))
    assert (none["head.weight"], none["backbone.layer.weight"]) == (0.0, 0.1)


def test_head_rates_go_with_scales_of_a_methods_own() -> None:
    method = Probe(("backbone", {"lr_scale": 0.5}), ("head", {"lr_scale": 0.1, "weight_decay": 0.7}))
    optim = SGD.Config(**COURSE, head_lr=4.0, head_weight_decay=0.3)
    found = rates(method, optim)
    assert (found["backbone.layer.weight"], found["head.weight"]) == pytest.approx((1.0, 0.4))
    assert decays(method, optim)["head.weight"] == 0.7


def test_groups_stay_as_they_are_where_nothing_is_asked_for() -> None:
    optim = SGD.Config(**COURSE)
    groups = build_optimizer(Probe(), optim).param_groups
    assert [len(group["params"]) for group in groups] == [
        len(group["params"]) for group in split_groups(Probe(), optim)
    ]


class Kinds(Probe):
    """Every kind of parameter of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.bn = nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.gamma = nn.Parameter(torch.ones(4))


NORMS = {"bn.weight", "bn.bias", "group.weight", "group.bias", "gamma", "backbone.norm.weight", "backbone.norm.bias"}
BIASES = {"conv.bias", "head.bias", "backbone.layer.bias"}
NORM_BIASES = {"bn.bias", "group.bias", "backbone.norm.bias"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, NORMS | BIASES),
        ({"exclude_norm_and_bias": False}, set()),
        ({"exclude_norm": False}, BIASES | NORM_BIASES),
        ({"exclude_bias": False}, NORMS),
        ({"exclude_norm_and_bias": False, "exclude_norm": True}, NORMS),
        ({"exclude_norm_and_bias": False, "exclude_bias": True}, BIASES | NORM_BIASES),
        ({"exclude_norm_and_bias": True, "exclude_norm": False, "exclude_bias": False}, set()),
    ],
)
def test_norms_and_biases_are_left_out_each_by_itself(settings: dict[str, bool], expected: set[str]) -> None:
    method = Kinds()
    found = decays(method, SGD.Config(**COURSE, weight_decay=0.1, **settings))
    assert {name for name, decay in found.items() if decay == 0} == expected | {"backbone.token"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("optim.layer_decay=0", "optim.layer_decay: 0.0 is out of range; give a number in (0, 1]"),
        ("optim.layer_decay=1.5", "optim.layer_decay: 1.5 is out of range"),
        ("optim.head_lr=-1", "optim.head_lr: -1.0 is out of range"),
    ],
)
def test_bad_rates_are_refused(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [words])
    assert told in str(caught.value)


def test_a_head_rate_beside_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim.head_lr=1 is applied as a multiple of optim.lr, which is 0"):
        build_optimizer(Probe(), SGD.Config(lr=0.0, head_lr=1.0))


def test_groups_have_one_order_at_any_decay_from_the_first_layer_to_the_heads() -> None:
    method = on(ViT(ViT.Config(width=12, depth=2, heads=3, patch_size=8, image_size=16)))
    names = {id(parameter): name for name, parameter in method.named_parameters()}

    def order(decay: float) -> list[list[str]]:
        groups = build_optimizer(method, AdamW.Config(**COURSE, layer_decay=decay, head_lr=1.0)).param_groups
        return [[names[id(parameter)] for parameter in group["params"]] for group in groups]

    groups = order(0.5)
    assert order(1.0) == groups
    firsts = [group[0].removeprefix("backbone.") for group in groups]
    layers = [method.backbone.layer_of(name) for name in firsts if not name.startswith("head")]
    assert layers == [0, 1, 2, 0, 1, 2, 3]
    assert [name for name in firsts if name.startswith("head")] == ["head.weight", "head.bias"]


def test_a_layer_decay_of_one_is_one_rate() -> None:
    method = on(ResNet(ResNet.Config(depth=18, width=4)))
    assert set(rates(method, SGD.Config(**COURSE, layer_decay=1.0)).values()) == {2.0}
