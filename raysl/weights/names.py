"""Names of tensors without the traces of how a network was wrapped, compiled, cut or put together."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Names that torch.compile, FSDP and activation checkpointing add, at any depth."""
_FIRST_OF_STAGE = re.compile(r"(.*\.)?(\d+)\.0\.conv1\.weight")
_SMALL_STEM = 3  # pixels along a side of the kernel
_CHUNKED = re.compile(r"((?:.*\.)?blocks)\.(\d+)\.(\d+)\.(.+)")


def plain_names(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file by the names that its networks have in their own code.

    Removes what torch.compile and FSDP put into names, numbers the blocks of DINOv2's chunks through, and names the
    children of a ResNet that is an `nn.Sequential`, as in lightly.

    >>> names = "_orig_mod.blocks.0.0.attn.qkv.weight", "_orig_mod.blocks.1.1.attn.qkv.weight"
    >>> list(plain_names(dict.fromkeys(names, torch.zeros(1))))
    ['blocks.0.attn.qkv.weight', 'blocks.1.attn.qkv.weight']
    """
    inner: dict[str, Any] = {
        name: plain_names(value) if isinstance(value, Mapping) else value for name, value in tree.items()
    }
    renamed = {name: unwrapped(name) if isinstance(value, Tensor) else name for name, value in inner.items()}
    # where two names would become one, a tensor would be lost: then all keep the names of the file
    if len(set(renamed.values())) == len(inner):
        inner = {renamed[name]: value for name, value in inner.items()}
    names = {name for name, value in inner.items() if isinstance(name, str) and isinstance(value, Tensor)}
    new = _names_of_blocks(names) | _names_of_stages({name: inner[name] for name in names})
    return {new.get(name, name): value for name, value in inner.items()}


def unwrapped(name: Any) -> Any:
    """Return a name without the parts that torch's wrappers add; other keys than texts as they are."""
    return _WRAPPERS.sub("", name) if isinstance(name, str) else name


def with_fused_gates(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a ViT's tensors with the gates of its MLPs as raysl has them: gate and value in one layer, `fc1`.

    Meta's code has `w12` and `w3`, or `w1`, `w2` and `w3`, timm `fc1_g` and `fc1_x`, the reader of Hugging Face's files
    `w1`, `fc1` and `fc2`.
    """
    fused = dict(tensors)
    for name in tensors:
        block, _, kind = name.rpartition(".mlp.")
        part, _, rest = kind.partition(".")
        if part in ("w12", "w3"):
            fused[f"{block}.mlp.{'fc1' if part == 'w12' else 'fc2'}.{rest}"] = fused.pop(name)
        elif part in ("w1", "fc1_g"):
            values = (f"{block}.mlp.{value}.{rest}" for value in ("w2", "fc1_x", "fc1"))
            value = next((value for value in values if value in fused), None)
            if value is not None:
                pair = fused.pop(name), fused.pop(value)
                fused[f"{block}.mlp.fc1.{rest}"] = torch.cat(pair)
    return fused


def _names_of_blocks(names: set[str]) -> dict[str, str]:
    """Return the names of a ViT's blocks that lie in chunks, `blocks.1.6.norm1.weight`, as `blocks.6.norm1.weight`."""
    parts = {name: match.groups() for name in names if (match := _CHUNKED.fullmatch(name))}
    where = {(head, int(chunk), int(block)) for head, chunk, block, rest in parts.values() if rest == "attn.qkv.weight"}
    number: dict[tuple[str, int, int], int] = {}
    for head, chunk, block in sorted(where):
        number[head, chunk, block] = sum(key[0] == head for key in number)
    keys = {name: (head, int(chunk), int(block)) for name, (head, chunk, block, _) in parts.items()}
    return {name: f"{key[0]}.{number[key]}.{parts[name][3]}" for name, key in keys.items() if key in number}


def _names_of_stages(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return torchvision's names of a ResNet whose children are numbered: 0 conv1, 1 bn1, and its stages in order."""
    stages: dict[str, list[int]] = {}
    for name in tensors:
        if match := _FIRST_OF_STAGE.fullmatch(name):
            stages.setdefault(match[1] or "", []).append(int(match[2]))
    new = {}
    for prefix, numbers in stages.items():
        stem = tensors.get(f"{prefix}0.weight")
        # ReLU and pooling lie between norm and stages; small images have no pooling.
        first = (3, 4) if stem is not None and stem.shape[-1] == _SMALL_STEM else (4,)
        if stem is None or stem.ndim != 4 or f"{prefix}1.running_mean" not in tensors or min(numbers) not in first:
            continue
        children = {0: "conv1", 1: "bn1", **{number: f"layer{i}" for i, number in enumerate(sorted(numbers), start=1)}}
        for name in tensors:
            number, _, rest = name.removeprefix(prefix).partition(".")
            if name.startswith(prefix) and number.isdigit() and int(number) in children:
                new[name] = f"{prefix}{children[int(number)]}.{rest}"
    return new
