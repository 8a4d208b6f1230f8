"""RegNets by their parameters: those that torchvision has by name, and the largest that were published."""

import pytest
import torch
from torchvision import models

from raysl.errors import ConfigError
from raysl.nn.backbones.regnet import RegNet
from raysl.nn.backbones.shapes import SHAPES, measure_cost
from raysl.nn.backbones.torchvision_models import TorchvisionModel

TINY = {"depth": 5, "w_0": 16, "w_a": 12.0, "w_m": 2.5, "group_width": 8}


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["regnet_x_400mf", "regnet_y_16gf", "regnet_y_128gf"])
def test_parameters_and_multiplications_are_those_that_torchvision_tells(shape: str) -> None:
    cost = measure_cost(RegNet, RegNet.Config(**SHAPES["regnet"][shape]))
    weights = models.get_model_weights(shape)
    published = next(iter(weights)).meta
    assert cost.parameters + 1000 * (cost.feature_dim + 1) == published["num_params"]
    if shape != "regnet_y_128gf":  # whose weights are for 384 pixels
        assert (cost.flops / 2 + 1000 * cost.feature_dim) / 1e9 == pytest.approx(published["_ops"], abs=1e-3)


@pytest.mark.thorough
def test_the_network_of_seer_is_as_large_as_published() -> None:
    cost = measure_cost(RegNet, RegNet.Config(**SHAPES["regnet"]["regnet_y_256gf"]))
    assert round(cost.flops / 2e9) == 254
    assert round((cost.parameters + 1000 * (cost.feature_dim + 1)) / 1e9, 2) == 1.28


@pytest.mark.thorough
def test_it_is_torchvisions_network_of_that_name() -> None:
    by_name = TorchvisionModel(TorchvisionModel.Config(model="regnet_x_400mf")).eval()
    network = RegNet(RegNet.Config(**SHAPES["regnet"]["regnet_x_400mf"])).eval()
    network.load_state_dict(by_name.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(network(images), by_name(images))
    assert network.stage_widths == by_name.stage_widths


@pytest.mark.thorough
def test_squeeze_and_excitation_is_a_setting() -> None:
    plain, squeezed = RegNet(RegNet.Config(**TINY, se_ratio=0)), RegNet(RegNet.Config(**TINY))
    assert not any("se" in name.split(".") for name, _ in plain.named_modules())
    assert any("se" in name.split(".") for name, _ in squeezed.named_modules())
    squeezed(torch.randn(2, 3, 32, 32)).square().mean().backward()
    assert [name for name, parameter in squeezed.named_parameters() if parameter.grad is None] == []


@pytest.mark.thorough
def test_what_makes_no_network_is_refused_with_what_does() -> None:
    with pytest.raises(ConfigError, match="w_0 201 is not a multiple of 8; try 200"):
        RegNet.info(RegNet.Config(w_0=201))
    with pytest.raises(ValueError, match="no stage 'res5' in this RegNet; its stages: stage1, "):
        RegNet(RegNet.Config(**TINY)).stages(torch.zeros(1, 3, 32, 32), ["res5"])
    RegNet.check_side(RegNet.Config(**TINY), 4)
