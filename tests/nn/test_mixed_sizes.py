"""Features of a list of images of mixed sizes are those of one at a time."""

import pytest
import torch

from raysl.nn.backbones.mixed_sizes import features_of
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT

SIDES = [(16, 16), (24, 32), (16, 16), (32, 24), (16, 16), (24, 32)]


@pytest.mark.parametrize("batch_size", [2, 64])
@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_each_image_gets_what_it_would_have_alone(kind: str, batch_size: int) -> None:
    torch.manual_seed(0)
    networks = {
        "resnet": ResNet(ResNet.Config(depth=10, width=8, stem="cifar")),
        "vit": ViT(ViT.Config(width=24, depth=2, heads=3, patch_size=8, image_size=16)),
    }
    network = networks[kind].eval()
    images = [torch.randn(3, *side) for side in SIDES]
    rows: list[int] = []
    network.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    with torch.no_grad():
        found = features_of(network, images, batch_size)
        assert rows == ([2, 1, 2, 1] if batch_size == 2 else [3, 2, 1])
        expected = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_reach_each_image() -> None:
    images = [torch.randn(3, *side, requires_grad=True) for side in SIDES]
    features = features_of(lambda batch: batch.square().sum(dim=(2, 3)), images)
    features[3].sum().backward()
    torch.testing.assert_close(images[3].grad, 2 * images[3].detach())
    assert images[2].grad is None or images[2].grad.abs().max() == 0


def test_lists_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="images is empty"):
        features_of(lambda batch: batch, [])
    with pytest.raises(ValueError, match=r"shape \[2, 3, 8, 8\]; give each as \[3, H, W\]"):
        features_of(lambda batch: batch, [torch.zeros(2, 3, 8, 8)])
