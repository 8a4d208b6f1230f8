"""Pixels as features: what a network has to beat."""

from torch import Tensor, nn

PIXELS_SIDE = 32


class RawPixels(nn.Module):
    """The image itself as a feature vector, shrunk to at most 32 pixels a side."""

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 3 * side * side]."""
        side = min(PIXELS_SIDE, images.shape[-1])
        return nn.functional.adaptive_avg_pool2d(images, side).flatten(1)
