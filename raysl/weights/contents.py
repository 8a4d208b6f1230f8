"""The content of a file of weights in words, for messages."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

ARCHITECTURES = (
    "ResNets, wide ResNets, ResNeXts and ViTs are known by their tensors; name any other network of torchvision or "
    "timm: backbone=timm backbone.model=convnext_tiny"
)
"""Networks that are read from files, in words."""
_TORCHVISION_VITS = {768: "b", 1024: "l", 1280: "h"}
"""Letters of the sizes of torchvision's ViTs, by width."""


def describe_tree(tree: Mapping[str, Any]) -> str:
    """Describe the content of a file in words."""
    parts = [
        part for name, value in tree.items() if isinstance(value, Mapping) for part in _parts(str(name), value)[:2]
    ]
    tensors = [str(name) for name, value in tree.items() if isinstance(value, Tensor)]
    first = f"{len(tensors)} tensors, the first {', '.join(tensors[:3])}" if tensors else ""
    return f"it holds {', '.join(filter(None, [*parts[:6], first])) or 'nothing'}"


def network_to_name(tree: Mapping[str, Any]) -> str:
    """Return a network that the names in a file point to, and which setting names it; else those that are known."""
    tensors = dict(named_tensors(tree))
    for name, value in tensors.items():
        if name.endswith("conv_proj.weight") and value.ndim == 4:
            model = f"vit_{_TORCHVISION_VITS.get(value.shape[0], 'b')}_{value.shape[3]}"
            return f"{name} is of torchvision's ViTs: give backbone=torchvision backbone.model={model}"
        if re.search(r"layer1\.0\.conv2\.(?!weight|bias)", name):
            return (
                f"{name} is of a ResNet with selective kernels or other blocks, which tensors do not tell: name "
                "timm's network, such as backbone=timm backbone.model=skresnet50; one of raysl is read from its run, "
                "or from the model.safetensors of --to safetensors"
            )
        if re.search(r"(^|\.)2\.0\.conv1\.weight$", name):
            return (
                f"{name} is of an nn.Sequential that has a block after its first norm, without a ReLU between them, as "
                "of lightly's ResNetGenerator; no ResNet of raysl computes this"
            )
    return ARCHITECTURES


def named_tensors(tree: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a tree with their names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from named_tensors(value)
        elif isinstance(value, Tensor):
            yield str(name), value


def _parts(path: str, inner: Mapping[str, Any]) -> list[str]:
    """Describe a dictionary of a file, or those inside it that hold tensors, with their dotted keys."""
    if first := next((name for name, value in inner.items() if isinstance(value, Tensor)), None):
        return [f"{path} ({len(inner)} entries, the first {first})"]
    deeper = [
        part
        for name, value in inner.items()
        if isinstance(value, Mapping)
        for part in _parts(f"{path}.{name}", value)
        if "the first" in part
    ]
    return deeper or [f"{path} ({len(inner)} entries)"]
