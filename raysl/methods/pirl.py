"""PIRL: Self-Supervised Learning of Pretext-Invariant Representations.

Misra and van der Maaten 2019, arXiv 1912.01991. An image and its shuffled jigsaw tiles must both match the image's
row in a memory bank, so that the representation does not depend on the transformation.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor, nn

from raysl.config.ranges import Area, Count, Share, Within, WithViews
from raysl.losses import at_least_fp32, nce_log_norm
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.methods.npid import NPID
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import Crops, Mask, RandomPhotometric, RandomResizedCrop, Tiles, Transform, View, ViewRecipe


@dataclass(frozen=True, kw_only=True)
class ImageAndTiles(Crops):
    """A crop of an image, and the shuffled tiles of another crop, each with its own colours."""

    square: Annotated[int, Within(6, 16_384), WithViews(is_seen=False)] = 255
    """Side of the crop that is cut into tiles, in pixels (section 2.3); follows `size` in proportion unless it is
    given, and so do the sizes of tiles."""
    square_min_scale: Area = 0.6
    """Smallest area of that crop as a share of the image (section 2.3)."""
    grid: Literal[2, 3] = 3
    """Cells along each side of that crop (section 2.3)."""
    tile_size: Annotated[int, Within(2, 5461), WithViews()] = 64
    """Side of the tile inside each cell, in pixels (section 2.3)."""
    tile_jitter: Annotated[int, Within(1, 5460), WithViews(is_seen=False)] = 21
    """Positions of a tile along each axis of its cell."""
    photometric_p: Share = 0.66
    """Probability of posterising, sharpening, solarising and stretching the contrast, as in VISSL's transforms."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "global" of the image, and "patches" of its grid**2 tiles in an unknown order."""
        groups = super().recipe(mask).groups
        tiles = Tiles(grid=self.grid, size=self.tile_size, jitter=self.tile_jitter, order="random")
        square = RandomResizedCrop(size=self.square, scale=(self.square_min_scale, 1.0))
        return ViewRecipe(groups | {"patches": (View(square, tiles=tiles, tile_transforms=self._chain()),)})

    def _colors(self) -> list[tuple[float, Transform]]:
        first, second = super()._colors()
        return [first, (self.photometric_p, RandomPhotometric(p=self.photometric_p)), second]


class PIRL(NPID):
    """Recognises each image, and its tiles, among others in a memory bank of images."""

    logged = ("contrastive_top1", "tiles_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(NPID.Config):
        """The paper's ImageNet settings (section 3); temperature, width and momentum are those of NPID."""

        name: str = "pirl"
        tiles_weight: Share = 0.5
        """Weight lambda of the tiles' term; the image's has the rest, and 0 is NPID++ (eq. 5)."""
        num_negatives: Count = 32000
        """Rows of the bank that an image or its tiles are compared with, drawn for each (section 3)."""
        loss: Literal["nce", "self_normalised", "cross_entropy"] = "self_normalised"
        """Noise-contrastive estimation with Z from each image's own negatives (eq. 3 and 4), or with a constant from
        the first batch as in NPID and VISSL (nce), or the cross entropy of picking the image's row."""
        views: ImageAndTiles = field(
            default_factory=lambda: ImageAndTiles(num=1, jitter=(0.4, 0.4, 0.4, 0.2), jitter_p=1.0, blur_p=0.0)
        )
        """One crop and nine tiles of each image (section 2.3; colours of VISSL's transforms)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dim, num_tiles = self.config.output_dim, self.config.views.grid**2
        self.tile_projector = nn.Linear(backbone.feature_dim, dim, bias=not self.config.projector_norm)
        self.tiles_projector = self._head(num_tiles * dim)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return equation 5: both terms compare with the bank's row of the image, m_I, and rows of other images."""
        config = self.config
        image = at_least_fp32(self.projector(self.backbone(batch.views["global"][:, 0])))  # [B, P], f(v_I)
        tiles = at_least_fp32(self._embed_tiles(batch.views["patches"]))  # [B, P], g(v_I^t)
        for_tiles, for_image = (self._sample_rows(batch, slot) for slot in ("pirl.tiles", "pirl.image"))  # [B, 1 + K]
        tiles_rows, image_rows = self.bank.rows(for_tiles), self.bank.rows(for_image)  # [B, 1 + K, P]
        carry, log_norm = {"z": image.detach()}, self.log_norm
        if step.index == 0:
            carry["log_norms"] = nce_log_norm(tiles, tiles_rows, len(self.bank.bank), config.temperature)  # [B]
            log_norm = self._mean_norm(carry)
        tiles_loss, image_loss = self._loss(tiles, tiles_rows, log_norm), self._loss(image, image_rows, log_norm)
        loss = config.tiles_weight * tiles_loss + (1 - config.tiles_weight) * image_loss
        metrics = {
            "contrastive_top1": 100 * self._accuracy(image, image_rows, for_image),
            "tiles_top1": 100 * self._accuracy(tiles, tiles_rows, for_tiles),
            **batch_collapse(image),
        }
        return StepOutput(loss, metrics, carry)

    def _embed_tiles(self, tiles: Tensor) -> Tensor:
        """Return embeddings [B, P] of tiles [B, T, C, H, W]: each is projected, then all are concatenated in order."""
        h = self.backbone(tiles.flatten(0, 1))  # [B*T, D]
        concatenated = self.tile_projector(h).unflatten(0, tiles.shape[:2]).flatten(1)  # [B, T*P]
        embeddings: Tensor = self.tiles_projector(concatenated)
        return embeddings
