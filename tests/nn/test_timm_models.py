"""The networks of timm as backbones; timm is not needed for anything else."""

import sys

import pytest
import torch
from torch import nn

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import BackboneInfo
from raysl.nn.backbones.timm_models import TimmModel
from raysl.nn.batch_norm import SyncBatchNorm, convert_sync_batch_norm
from raysl.nn.drop_path import DropPath

timm = pytest.importorskip("timm")

ONE_A_FAMILY = [
    "resnet10t",
    "convnext_atto",
    "efficientnet_b0",
    "mobilenetv3_small_050",
    "regnety_002",
    "swin_tiny_patch4_window7_224",
    "vit_tiny_patch16_224",
    "xcit_nano_12_p16_224",
]


def made(model: str, **fields: object) -> TimmModel:
    torch.manual_seed(0)
    return TimmModel(TimmModel.Config(model=model, **fields))


def side_of(network: TimmModel) -> int:
    return 224 if network.network.default_cfg.get("fixed_input_size") else 64


@pytest.mark.thorough
@pytest.mark.parametrize("model", ONE_A_FAMILY)
def test_features_and_stages_are_timms(model: str) -> None:
    network = made(model).eval()
    torch.manual_seed(0)
    reference = timm.create_model(model, num_classes=0).eval()
    images = torch.randn(2, 3, side_of(network), side_of(network), generator=torch.Generator().manual_seed(1))
    names = list(network.stage_widths)
    with torch.no_grad():
        found = network.stages(images, names[::-1])
        expected = reference(images)
    assert torch.equal(found["features"], expected)
    assert list(found) == names[::-1]
    assert {name: out.shape[1] for name, out in found.items()} == network.stage_widths
    assert TimmModel.info(network.config) == BackboneInfo(
        expected.shape[1], None, network.stage_widths, num_layers=network.num_layers
    )


@pytest.mark.thorough
@pytest.mark.parametrize("model", ONE_A_FAMILY)
def test_weights_get_a_gradient(model: str) -> None:
    network = made(model)
    network(torch.randn(2, 3, side_of(network), side_of(network))).square().mean().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


@pytest.mark.thorough
def test_blocks_are_left_out_by_sample() -> None:
    network = made("convnext_atto", drop_path=0.3)
    rates = [module.rate for module in network.modules() if isinstance(module, DropPath)]
    assert rates[-1] == pytest.approx(0.3)
    assert rates == sorted(rates)
    assert not any(isinstance(module, timm.layers.DropPath) for module in network.modules())


@pytest.mark.thorough
def test_no_decay_names_what_timm_does() -> None:
    assert made("vit_tiny_patch16_224").no_decay() == {"network.cls_token", "network.pos_embed"}
    assert made("resnet10t").no_decay() == set()


@pytest.mark.thorough
def test_activations_of_timms_normalisation_stay_when_it_is_over_all_ranks() -> None:
    plain = made("regnety_002").eval()
    images = torch.randn(2, 3, 32, 32)
    expected, names = plain(images), list(plain.state_dict())
    converted = convert_sync_batch_norm(plain)
    norms = [module for module in converted.modules() if isinstance(module, nn.BatchNorm2d | SyncBatchNorm)]
    assert norms
    assert all(isinstance(module, SyncBatchNorm) for module in norms)
    assert torch.equal(converted(images), expected)
    assert list(converted.state_dict()) == names


@pytest.mark.thorough
def test_transformers_take_images_of_another_size_when_they_are_told() -> None:
    network = made("vit_tiny_patch16_224", image_size=32).eval()
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    assert network.stages(torch.zeros(1, 3, 32, 32), ["block3"])["block3"].shape == (1, 192, 2, 2)
    with pytest.raises(ConfigError, match="64x64 pixels do not fit vit_tiny_patch16_224; 32x32 do"):
        TimmModel.check_side(network.config, 64)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "resnet51"}, "timm has no classification model 'resnet51'; did you mean 'resnet5"),
        ({"model": "resnet50.a1_in1k"}, "did you mean 'resnet50"),
        ({"model": "hf-hub:someone/something"}, "no classification model 'hf-hub:someone/something'"),
        ({"model": "resnet18", "image_size": 32}, "resnet18 of timm has no img_size; leave it out"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_does(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TimmModel.info(TimmModel.Config(**fields))


def test_without_timm_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="pip install timm"):
        TimmModel.info(TimmModel.Config())
