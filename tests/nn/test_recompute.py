"""A second forward pass in place of kept activations changes neither gradients nor what a first one leaves."""

import copy

import pytest
import torch
from torch import Tensor, nn

from raysl.data.batch import Batch
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import keyed_draws
from raysl.nn.recompute import recompute

NETWORKS = {
    "resnet": lambda: ResNet(ResNet.Config(depth=18, width=8)),
    "vit": lambda: ViT(ViT.Config(size="nano", width=24, heads=3, depth=3, image_size=32, patch_size=8, drop_path=0.5)),
    "torchvision": lambda: TorchvisionModel(TorchvisionModel.Config(model="regnet_x_400mf")),
}


def built(name: str) -> Backbone:
    torch.manual_seed(0)
    return NETWORKS[name]()


def passed(network: Backbone, num: int = 2) -> dict[str, Tensor]:
    """Gradients, buffers and features of passes over a batch."""
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    batch = Batch({"global": images[:, None]}, torch.arange(6), torch.full((6,), -1))
    for _ in range(num):
        torch.manual_seed(2)
        with keyed_draws(batch):
            features = network(images)
        features.pow(2).mean().backward()
    gradients = {f"grad.{name}": p.grad for name, p in network.named_parameters() if p.grad is not None}
    return gradients | dict(network.named_buffers()) | {"features": features.detach()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_statistics_and_draws_are_those_of_one_pass_to_the_bit(name: str) -> None:
    plain, other = built(name), built(name)
    parts = [part for parts in other.units().values() for part in parts]
    recompute(parts)
    expected, found = passed(plain), passed(other)
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
    assert other.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
def test_inner_activations_are_not_kept(name: str) -> None:
    plain, other = built(name), built(name)
    recompute(part for parts in other.units().values() for part in parts)
    assert kept_bytes(other) < 0.7 * kept_bytes(plain)


def kept_bytes(network: nn.Module) -> int:
    """Of what a forward pass keeps for its backward pass, less the weights."""
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = network(torch.randn(2, 3, 64, 64) if not isinstance(network, ViT) else torch.randn(2, 3, 32, 32))
    assert out.requires_grad
    return sum(kept.values())


@pytest.mark.thorough
def test_without_gradients_it_is_the_module_as_it_was() -> None:
    network = built("resnet").eval()
    other = copy.deepcopy(network)
    recompute(other.units()["res2"])
    recompute(other.units()["res2"])  # once more changes nothing
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(images), other(images))
    assert isinstance(other.units()["res2"][0], type(network.units()["res2"][0]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
def test_units_hold_most_weights_once_each(name: str) -> None:
    network = built(name)
    parts = [part for parts in network.units().values() for part in parts]
    held = [id(p) for part in parts for p in part.parameters()]
    assert len(held) == len(set(held))
    num = sum(p.numel() for p in network.parameters())
    assert sum(p.numel() for part in parts for p in part.parameters()) > 0.8 * num
