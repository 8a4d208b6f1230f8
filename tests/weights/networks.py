"""Networks of other libraries with weights like no fresh ones, and files in the layouts that hold such."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm.models.vision_transformer as timm_vit
import torch
import torchvision
from torch import Tensor, nn

from raysl.nn.backbones.resnet import ResNet

SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 1, "num_classes": 5}
Tensors = Mapping[str, Tensor]


def shaken(net: nn.Module, seed: int = 0) -> Any:
    """The network in evaluation mode, its norms and running statistics like those of a trained one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if "num_batches" in name:
                value.fill_(7)
            elif "running_var" in name:
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
            elif value.ndim == 1 or name in ("cls_token", "pos_embed", "reg_token"):
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return net.eval()


def tv_resnet(depth: int = 18) -> Any:
    """torchvision's ResNet, which gives features."""
    torch.manual_seed(depth)
    net = shaken(getattr(torchvision.models, f"resnet{depth}")())
    return net


def features(net: Any, images: Tensor) -> Tensor:
    """What torchvision's ResNet gives its classifier."""
    kept, net.fc = net.fc, nn.Identity()
    with torch.no_grad():
        found: Tensor = net(images)
    net.fc = kept
    return found


def small_resnet(seed: int = 0, depth: int = 18) -> ResNet:
    """A narrow ResNet, by torchvision's names."""
    torch.manual_seed(seed)
    net: ResNet = shaken(ResNet(ResNet.Config(depth=depth, width=8)), seed)  # type: ignore[arg-type]
    return net


def small_vit(seed: int = 0, **options: Any) -> Any:
    """A small ViT of timm."""
    torch.manual_seed(seed)
    return shaken(timm_vit.VisionTransformer(**{**SMALL_VIT, **options}), seed)


def pooled(net: Any, images: Tensor) -> Tensor:
    """What timm's network gives its classifier."""
    with torch.no_grad():
        found: Tensor = net.forward_head(net.forward_features(images), pre_logits=True)
    return found


def behind(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors with a prefix before their names."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def head(prefix: str = "") -> dict[str, Tensor]:
    """A projector of two layers, which no backbone has."""
    return behind(prefix, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).state_dict())


def optimizer_of(net: nn.Module) -> dict[str, Any]:
    """An optimizer's state after a step."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def images(side: int = 32, num: int = 2) -> Tensor:
    """Some normalised images."""
    return torch.randn(num, 3, side, side, generator=torch.Generator().manual_seed(1))


def saved(content: Any, path: Path, is_old: bool = False) -> str:
    """The path of a file of `torch.save`; `is_old`: in its format of before 2020."""
    torch.save(content, path, _use_new_zipfile_serialization=not is_old)
    return str(path)
