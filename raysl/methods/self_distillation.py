"""What DINO, iBOT and DINOv2 ask of their views, and refuse before a process starts."""

from raysl.errors import ConfigError
from raysl.methods.patches import check_small_views, grid_side, need_mask_token, patch_size_of
from raysl.plan.setup import Setup
from raysl.transforms.masking import BlockMask


def check_views(setup: Setup, title: str) -> None:
    """Refuse a single view.

    Args:
        setup: of the run.
        title: what the method is called.

    Raises:
        ConfigError: with what to set instead.
    """
    views = setup.method.views
    if views.num + views.num_local < 2:
        raise ConfigError(
            f"method.views.num is 1 and method.views.num_local is 0; {title} predicts what the teacher says of one "
            "view from another: give 2 views, or small ones"
        )


def block_mask(setup: Setup, title: str, min_block: int | None = None) -> BlockMask:
    """The mask of each large view: none for half of them, else blocks that hide a share in `method.mask_share`.

    Args:
        setup: of the run.
        title: what the method is called.
        min_block: patches of the smallest block; None for a ninth of a view's, as in BEiT.

    Raises:
        ConfigError: if the backbone has no patches.
    """
    low, high = setup.method.mask_share
    ratios = ((0.0, 0.0), ((low + high) / 2, (high - low) / 2))
    return BlockMask(
        patch_size=patch_size_of(setup, title), ratios=ratios, aspect=setup.method.mask_aspect, min_block=min_block
    )


def most_masked(setup: Setup, title: str) -> int:
    """Patches of a large view that are masked at most; the arguments are those of `block_mask`."""
    return block_mask(setup, title).most_masked(grid_side(setup, title) ** 2)


def check_block_masks(setup: Setup, title: str) -> None:
    """Refuse backbones without patches or a token for masked ones, views that patches do not cover, and masks that hide
    nothing; the arguments are those of `block_mask`.

    Raises:
        ConfigError: with the numbers and what to set instead.
    """
    side = grid_side(setup, title)
    need_mask_token(setup, title)
    check_small_views(setup, title)
    if most_masked(setup, title) < 1:
        raise ConfigError(
            f"method.mask_share={list(setup.method.mask_share)} masks none of the {side**2} patches of a large view; "
            "give larger shares, or smaller patches"
        )
