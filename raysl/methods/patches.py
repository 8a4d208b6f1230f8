"""What methods on patches ask of a backbone, and what they refuse before a process starts."""

from raysl.config.sizes import setting_of
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup


def patch_size_of(setup: Setup, title: str) -> int:
    """Side of the backbone's patches in pixels.

    Args:
        setup: of the run.
        title: what the method is called.

    Raises:
        ConfigError: if the backbone has none.
    """
    if setup.backbone.patch_size is None:
        raise ConfigError(
            f"backbone {setup.config.backbone.name!r} has no patches, and {title} hides some of them; "
            "set backbone=vit, or another TokenBackbone"
        )
    return setup.backbone.patch_size


def grid_side(setup: Setup, title: str) -> int:
    """Patches along a side of the views of `Config.views`; the arguments are those of `patch_size_of`.

    Raises:
        ConfigError: if the backbone has no patches, or they do not cover a view exactly.
    """
    patch_size, size = patch_size_of(setup, title), setup.method.views.size
    rest = size % patch_size
    if rest or size < patch_size:
        ways = [str(side) for side in (size - rest, size - rest + patch_size) if side >= patch_size]
        raise ConfigError(
            f"views of {size} pixels are not covered by patches of {patch_size}; "
            f"set {setting_of(setup.config, size)}={' or '.join(ways)}, or another backbone.patch_size"
        )
    return int(size // patch_size)


def check_small_views(setup: Setup, title: str) -> None:
    """Refuse small views that patches do not cover exactly; the arguments are those of `patch_size_of`.

    Raises:
        ConfigError: with the numbers and what to set instead.
    """
    patch_size, local = patch_size_of(setup, title), setup.method.views.local_size
    if setup.method.views.num_local and (rest := local % patch_size):
        ways = [str(size) for size in (local - rest, local - rest + patch_size) if size >= patch_size]
        raise ConfigError(
            f"small views of {local} pixels are not covered by patches of {patch_size}; "
            f"set method.views.local_size={' or '.join(ways)}, or method.views.num_local=0"
        )


def need_mask_token(setup: Setup, title: str) -> None:
    """Refuse a ViT that has no token to stand in for masked patches.

    Raises:
        ConfigError: in that case.
    """
    backbone = setup.config.backbone
    if isinstance(backbone, ViT.Config) and not backbone.mask_token:
        raise ConfigError(
            f"backbone.mask_token is false, and {title} puts that token in place of masked patches; "
            "set backbone.mask_token=true"
        )


def token_backbone(backbone: Backbone) -> TokenBackbone:
    """The same backbone, known to have tokens.

    Raises:
        TypeError: if it has a patch size alone.
    """
    if not isinstance(backbone, TokenBackbone):
        raise TypeError(f"{type(backbone).__name__} has a patch_size, and is no TokenBackbone; derive it from that")
    return backbone
