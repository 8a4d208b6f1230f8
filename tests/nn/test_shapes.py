"""What the well-known shapes cost is what their authors published."""

from pathlib import Path

import pytest
import torch
from torchvision import models

from raysl.components import ALIASES, resolve
from raysl.nn.backbones.shapes import SHAPES, Cost, measure_cost, measure_shapes
from raysl.nn.backbones.vit import ViT

FIRST = {
    (alias, *settings): shape for alias, shapes in SHAPES.items() for shape, settings in [*shapes.items()][::-1]
}.values()
"""The first shape of a backbone with settings of these names. Others differ in numbers; those of torchvision have
gradients of their own in `test_torchvision_models.py`."""
EVERY = [
    pytest.param(alias, shape, marks=pytest.mark.thorough if shape in FIRST or alias == "alexnet" else pytest.mark.slow)
    for alias, shapes in SHAPES.items()
    for shape, settings in shapes.items()
]
TORCHVISION = {
    "resnet18": "resnet",
    "resnet50": "resnet",
    "wide_resnet50_2": "resnet",
    "resnext50_32x4d": "resnet",
    "convnext_tiny": "torchvision",
    "regnet_y_16gf": "torchvision",
    "swin_t": "torchvision",
}


@pytest.mark.thorough
@pytest.mark.parametrize("shape", TORCHVISION)
def test_parameters_and_multiplications_are_those_that_torchvision_tells(shape: str) -> None:
    alias = TORCHVISION[shape]
    kind = resolve("backbone", alias)
    cost = measure_cost(kind, kind.Config(**SHAPES[alias][shape]))
    published = models.get_model_weights(shape).IMAGENET1K_V1.meta
    assert cost.parameters + 1000 * (cost.feature_dim + 1) == published["num_params"]
    assert (cost.flops / 2 + 1000 * cost.feature_dim) / 1e9 == pytest.approx(published["_ops"], abs=1e-3)


@pytest.mark.parametrize(("alias", "shape"), EVERY)
def test_every_shape_makes_a_network_that_trains_as_a_whole(alias: str, shape: str) -> None:
    kind = resolve("backbone", alias)
    network = kind.without_weights(kind.Config(**SHAPES[alias][shape]))
    side = network.native_size
    features = network(torch.zeros(2, 3, side, side, device="meta"))
    assert features.shape == (2, network.feature_dim)
    features.sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []
    *_, last = network.stage_widths
    own = network.feature_stages or (last,)
    assert sum(network.stage_widths[name] for name in own) == network.feature_dim


def test_every_backbone_has_shapes_and_a_row_in_the_docs() -> None:
    assert {*SHAPES, "timm"} == set(ALIASES["backbone"])
    text = Path("docs/backbones.md").read_text(encoding="utf-8")
    assert [alias for alias in ALIASES["backbone"] if f"\n| `{alias}` |" not in text] == []


@pytest.mark.thorough
def test_the_resnet_of_fifty_layers_has_25_557_032_parameters_with_its_classifier() -> None:
    kind = resolve("backbone", "resnet")
    assert measure_cost(kind, kind.Config(depth=50)) == Cost(2048, 25_557_032 - 2049 * 1000, 2 * 4_087_136_256, 224)


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "millions"), [("tiny", 5.717), ("small", 22.051), ("base", 86.568)])
def test_transformers_are_as_large_as_deits(size: str, millions: float) -> None:
    cost = measure_cost(ViT, ViT.Config(size=size), 224)
    assert (cost.parameters + 1000 * (cost.feature_dim + 1)) / 1e6 == pytest.approx(millions, abs=1e-3)


@pytest.mark.thorough
def test_a_list_has_the_settings_and_the_cost_of_each_shape() -> None:
    rows = {row["name"]: row for row in measure_shapes("vit")}
    assert set(rows["vit_tiny_patch16"]) == {
        "name", "settings", "feature_dim", "parameters", "flops", "image_size",
    }  # fmt: skip
    assert rows["vit_tiny_patch16"]["settings"] == {"size": "tiny"}
    assert rows["vit_nano_patch16"]["flops"] < rows["vit_tiny_patch16"]["flops"] < rows["vit_base_patch16"]["flops"]
    assert measure_shapes("timm") == []


@pytest.mark.thorough
def test_rotary_positions_have_no_weights_and_no_layers_of_their_own() -> None:
    rotary, learned = (
        measure_cost(ViT, ViT.Config(size="nano", position=position)) for position in ("rope", "learned")
    )
    assert rotary.flops == learned.flops
    assert (
        learned.parameters - rotary.parameters == 197 * learned.feature_dim
    )  # places of 14 x 14 patches and the class
