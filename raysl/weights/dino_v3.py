"""Files of DINOv3 (Simeoni et al. 2025, arXiv 2508.10104), by the names of Meta, of timm and of Hugging Face.

All three hold a ViT without position embeddings, with four registers; its queries and keys are turned by the places of
patches. Meta's files have the periods of these rotations, and a mask that takes the bias away from keys.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raysl.errors import ConfigError

Tensors = Mapping[str, Tensor]

PERIODS = "rope_embed.periods"
NORM_EPS = 1e-5
"""Of the layer norms of all published networks, by their code."""
BASE = 100.0
"""Of the periods of all published networks, where a file does not have them."""
_HUGGING_FACE = (
    (r"^model\.", ""),
    (r"^embeddings\.patch_embeddings\.", "patch_embed.proj."),
    (r"^embeddings\.register_tokens$", "storage_tokens"),
    (r"^embeddings\.", ""),
    (r"^(encoder\.)?layer\.", "blocks."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.attention\.", ".attn."),
    (r"\.mlp\.gate_proj\.", ".mlp.w1."),
    (r"\.mlp\.up_proj\.", ".mlp.fc1."),
    (r"\.mlp\.down_proj\.", ".mlp.fc2."),
)


def is_dino_v3(tensors: Mapping[str, Any]) -> bool:
    """Whether tensors, by the names of Meta or timm, are of a ViT of DINOv3."""
    has_registers = "storage_tokens" in tensors or "reg_token" in tensors
    return "pos_embed" not in tensors and (PERIODS in tensors or has_registers)


def with_meta_names(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a file of Hugging Face's DINOv3 by Meta's names; other files as they are.

    >>> tensors = {"embeddings.patch_embeddings.weight": torch.zeros(1), "layer.0.layer_scale1.lambda1": torch.zeros(1)}
    >>> sorted(with_meta_names(tensors))
    ['blocks.0.ls1.gamma', 'patch_embed.proj.weight']
    """
    if not any(re.search(r"(^|\.)layer\.0\.layer_scale1\.lambda1$", str(name)) for name in tree):
        return tree
    named: dict[str, Any] = {}
    for name, value in tree.items():
        for pattern, ours in _HUGGING_FACE:
            name = re.sub(pattern, ours, name)
        named[name] = value
    # Hugging Face has three layers for queries, keys and values, Meta has one
    blocks = [name.removesuffix("q_proj.weight") for name in named if name.endswith(".attn.q_proj.weight")]
    for block in blocks:
        weights = [named.pop(f"{block}{which}_proj.weight") for which in "qkv"]
        named[f"{block}qkv.weight"] = torch.cat(weights)
        _fuse_bias(named, block, [named.pop(f"{block}{which}_proj.bias", None) for which in "qkv"])
    return named


def with_whole_biases(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors with one bias of queries, keys and values, masked as the network masks it, in each block."""
    named = dict(tensors)
    for name in tensors:
        if name.endswith(".attn.qkv.bias_mask"):
            mask = named.pop(name)
            bias = name.removesuffix("_mask")
            if bias in named:
                named[bias] = named[bias] * mask.to(named[bias].dtype)
        elif name.endswith(".attn.q_bias"):
            block = name.removesuffix("q_bias")
            _fuse_bias(named, block, [named.pop(f"{block}{which}_bias", None) for which in "qkv"])
    return named


def settings_of(tensors: Tensors, where: str) -> dict[str, Any]:
    """Return the settings of raysl's ViT that these tensors show, beside those of any ViT."""
    settings: dict[str, Any] = {"position": "rope", "norm_eps": NORM_EPS, "rope_base": BASE}
    if PERIODS not in tensors:
        return settings
    periods = tensors[PERIODS].double()
    # the n-th of N periods is base^(n/N), n from 0, so the last one to the power N/(N-1) is the base
    num = len(periods)
    base = float(periods[-1]) ** (num / (num - 1)) if num > 1 else BASE
    base = float(f"{base:.2g}") if periods.max() == periods[-1] else base  # stored in as little as bf16
    row = base ** (torch.arange(num, dtype=torch.float64) / num)
    if not bool(((periods / row - 1).abs() < 1e-2).all()):
        raise ConfigError(
            f"{where} has rotary positions whose periods, {periods.min():g} to {periods.max():g}, do not rise from 1 "
            "in a geometric row; raysl's ViT has only those"
        )
    # a period turns four channels of a head: a pair of them by the row, another pair by the column
    return {**settings, "rope_base": base, "heads": tensors["patch_embed.proj.weight"].shape[0] // (4 * num)}


def _fuse_bias(named: dict[str, Any], block: str, biases: list[Tensor | None]) -> None:
    """Store the biases of queries, keys and values as one, with zeros for those that are missing."""
    known = [bias for bias in biases if bias is not None]
    if known:
        named[f"{block}qkv.bias"] = torch.cat([torch.zeros_like(known[0]) if b is None else b for b in biases])
