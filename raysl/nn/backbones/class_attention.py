"""Attention of the class token to the patches of an image, in the last block of a ViT."""

import torch
from torch import Tensor, nn

from raysl.nn.backbones.backbone import TokenBackbone
from raysl.nn.backbones.vit import ViT


@torch.no_grad()
def class_attention(backbone: nn.Module, images: Tensor) -> Tensor | None:
    """Return the attention of the class token to the patches in the last block, by head, float [B, heads, h, w].

    Fused attention returns no weights, so a hook on the block repeats the softmax for the class token alone. The
    weights of an image and a head sum to less than 1: class token and registers have the rest. Figure 1 of DINO (Caron
    et al. 2021, arXiv 2104.14294) shows them.

    >>> vit = ViT(ViT.Config(size="nano", patch_size=8, image_size=32))
    >>> class_attention(vit.eval(), torch.zeros(2, 3, 32, 48)).shape
    torch.Size([2, 3, 4, 6])

    Args:
        backbone: any network; None is returned for others than raysl's ViT, and for a causal one, whose class token
            comes before all patches and sees none.
        images: normalised images [B, 3, H, W].
    """
    return tokens_and_attention(backbone, images)[1] if isinstance(backbone, ViT) else None


@torch.no_grad()
def tokens_and_attention(backbone: TokenBackbone, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the output tokens of images [B, num_prefix_tokens + h*w, D], and what `class_attention` returns."""
    if not isinstance(backbone, ViT) or backbone.config.causal:
        return backbone.tokens(images), None
    weights: list[Tensor] = []
    attention = backbone.get_submodule(f"blocks.{len(backbone.blocks) - 1}.attn")
    handle = attention.register_forward_pre_hook(lambda module, inputs: weights.append(module.first_weights(*inputs)))
    try:
        tokens = backbone.tokens(images)
    finally:
        handle.remove()
    patches = weights[0][:, :, backbone.num_prefix_tokens :]  # [B, heads, h*w]
    return tokens, patches.reshape(*patches.shape[:2], *backbone.grid(images))
