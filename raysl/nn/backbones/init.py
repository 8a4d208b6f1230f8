"""Initial weights of a ViT, by the name of the paper or library whose code has them."""

import math
from typing import Literal

from torch import nn

from raysl.nn.backbones.palette import PaletteEmbed

Init = Literal["timm", "mae", "moco_v3", "beit", "ijepa", "msn", "ibot", "dino_v2", "dino_v3", "igpt"]
"""Names of the schemes of `init_vit`."""


def init_vit(vit: nn.Module, scheme: Init) -> None:
    """Initialise all weights of a ViT with timm's names; biases of linear layers are 0.

    | scheme | linear layers | patches | tokens and positions |
    |---|---|---|---|
    | timm (DeiT, DINO) | normal, deviation 0.02 | as torch draws a convolution | normal, 0.02 |
    | mae | Xavier's uniform | the same, as of a linear layer | normal, 0.02 |
    | moco_v3 | the same, queries, keys and values each as a layer | the same, bias 0 | class token 1e-6 |
    | beit (SimMIM, data2vec) | normal, 0.02, cut at one deviation; the last ones of block l over sqrt(2 l) | the same cut, bias 0 | the same cut |
    | ijepa | as timm | normal, 0.02, bias 0 | as timm |
    | msn | as timm | Kaiming's normal, bias 0 | as timm |
    | ibot | as timm | as timm | as timm, mask token 0 |
    | dino_v2 | as timm | as timm | as timm; class token and registers 1e-6, mask token 0 |
    | dino_v3 | as timm | as timm | as timm, mask token 0 |
    | igpt | normal: queries, keys, values 1 / sqrt(width), behind attention 1 / sqrt(width * depth), else 0.02 | as timm | as timm, positions 0.01 |

    Args:
        vit: a network with `patch_embed`, `blocks` and tokens.
    """  # noqa: E501
    init_linear(vit, scheme)
    if scheme == "beit":
        for number, block in enumerate(vit.get_submodule("blocks").children(), start=1):
            for name in ("attn.proj", "mlp.fc2"):
                block.get_parameter(f"{name}.weight").data.div_(math.sqrt(2 * number))
    elif scheme == "igpt":
        blocks = list(vit.get_submodule("blocks").children())
        for block in blocks:
            qkv, proj = (block.get_parameter(f"attn.{name}.weight") for name in ("qkv", "proj"))
            nn.init.normal_(qkv, std=qkv.shape[1] ** -0.5)
            nn.init.normal_(proj, std=(proj.shape[1] * len(blocks)) ** -0.5)
    patch_embed = vit.get_submodule("patch_embed")
    if isinstance(patch_embed, PaletteEmbed):
        nn.init.normal_(patch_embed.embedding.weight, std=0.02)
    else:
        _init_patches(patch_embed.get_submodule("proj"), scheme)
    for name, token in vit.named_parameters(recurse=False):
        if scheme in ("ibot", "dino_v2", "dino_v3") and name == "mask_token":
            nn.init.zeros_(token)
        elif (scheme == "moco_v3" and name == "cls_token") or (
            scheme == "dino_v2" and name in ("cls_token", "reg_token")
        ):
            nn.init.normal_(token, std=1e-6)
        elif scheme == "beit":
            nn.init.trunc_normal_(token, std=0.02, a=-0.02, b=0.02)
        else:
            nn.init.trunc_normal_(token, std=0.01 if (scheme, name) == ("igpt", "pos_embed") else 0.02)


def init_linear(module: nn.Module, scheme: Init = "timm") -> None:
    """Initialise every linear layer in a module as `init_vit` does; biases become 0.

    >>> layer = nn.Linear(4, 4)
    >>> init_linear(layer)
    >>> bool((layer.bias == 0).all())
    True
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        if scheme in ("mae", "moco_v3"):
            # Xavier's bound depends on the shape; MoCo v3 takes the shapes of queries, keys and values apart
            is_split = scheme == "moco_v3" and name.endswith("qkv")
            for part in layer.weight.data.chunk(3 if is_split else 1):
                nn.init.xavier_uniform_(part)
        else:
            bound = 0.02 if scheme == "beit" else 2.0
            nn.init.trunc_normal_(layer.weight, std=0.02, a=-bound, b=bound)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _init_patches(conv: nn.Module, scheme: Init) -> None:
    weight, bias = conv.get_parameter("weight"), conv.get_parameter("bias")
    if scheme in ("mae", "moco_v3"):
        nn.init.xavier_uniform_(weight.data.flatten(1))
    elif scheme in ("beit", "ijepa"):
        bound = 0.02 if scheme == "beit" else 2.0
        nn.init.trunc_normal_(weight, std=0.02, a=-bound, b=bound)
    elif scheme == "msn":
        nn.init.kaiming_normal_(weight, nonlinearity="relu")
    if scheme in ("moco_v3", "beit", "ijepa", "msn"):
        nn.init.zeros_(bias)
