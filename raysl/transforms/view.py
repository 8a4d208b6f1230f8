"""One view of an image: a crop, its transforms, and its tiles or mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from torch import Tensor

from raysl.transforms.chain import apply_chain, row_numbers
from raysl.transforms.crop import Crop
from raysl.transforms.random import SampleRandom
from raysl.transforms.transform import Transform

if TYPE_CHECKING:
    from raysl.transforms.masking import Mask
    from raysl.transforms.tiles import Tiles

_TILES, _TILE = (crc32(name) for name in (b"tiles", b"tile"))  # slots of a view's random numbers


@dataclass(frozen=True)
class View:
    """One view of an image: a crop, batched transforms in order, and either tiles or masked patches.

    >>> from raysl.transforms.crop import CenterCrop
    >>> view = View(CenterCrop(size=32, resize=36))
    >>> view.size, view.num_images
    (32, 1)

    Args:
        crop: from the decoded image to a square.
        transforms: applied to the crop.
        tiles: cuts the crop into tiles, which then are the view's images; None leaves it whole.
        tile_transforms: applied to the tiles, with fresh random numbers for each tile.
        mask: of the crop's patches, for the method; the pixels stay as they are.
    """

    crop: Crop
    transforms: tuple[Transform, ...] = ()
    tiles: "Tiles | None" = None
    tile_transforms: tuple[Transform, ...] = ()
    mask: "Mask | None" = None

    def __post_init__(self) -> None:
        if self.tile_transforms and self.tiles is None:
            raise ValueError("tile_transforms need tiles; put them into transforms, or give tiles")
        if self.mask is not None and self.tiles is not None:
            raise ValueError("a mask covers patches of the crop, and tiles are cut out of it; give one of the two")
        # Settings that do not fit the size of the crop raise here, before any image is read.
        no_samples = SampleRandom(0, 0, np.empty(0, np.int64), 0)
        self._extras(no_samples, self.draw(no_samples), None if self.tiles is None else self._drawn_tiles(no_samples))
        _draw(self.tile_transforms, no_samples, self.size)

    @property
    def num_images(self) -> int:
        """Number of images of the view: its tiles, or 1."""
        return 1 if self.tiles is None else self.tiles.num_tiles

    @property
    def size(self) -> int:
        """Side of the view's images, in pixels."""
        return self.crop.size if self.tiles is None else self.tiles.size

    def draw(self, random: SampleRandom) -> list[dict[str, Tensor]]:
        """Draw the parameters of each transform for the samples of `random`."""
        return _draw(self.transforms, random, self.crop.size)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the extras that the method gets beside the pixels."""
        no_samples = SampleRandom(0, 0, np.empty(0, np.int64), 0)
        tiles = None if self.tiles is None else self._drawn_tiles(no_samples)
        return tuple(self._extras(no_samples, self.draw(no_samples), tiles))

    def augment(self, random: SampleRandom, crops: Tensor, number: int) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Run the view's transforms.

        Args:
            random: of the view, for B samples.
            crops: uint8 [B, V, C, S, S] of all views in the group, contiguous; changed in place.
            number: of this view in its group.

        Returns:
            The tiles, uint8 [B, T, C, s, s], or None without tiles; and the extras for the method, [B, ...] on the
            CPU by name.
        """
        num_samples, num_views = crops.shape[:2]
        drawn = self.draw(random)
        if self.transforms:
            apply_chain(self.transforms, drawn, crops.flatten(0, 1), row_numbers(num_samples, num_views, number))
        if self.tiles is None:
            return None, self._extras(random, drawn, None)
        tiles = self._drawn_tiles(random)
        cut = self.tiles.cut(crops[:, number], tiles).contiguous()
        if self.tile_transforms:
            for tile in range(self.num_images):
                values = _draw(self.tile_transforms, random.at(_TILE).at(tile), self.size)
                apply_chain(
                    self.tile_transforms, values, cut.flatten(0, 1), row_numbers(num_samples, self.num_images, tile)
                )
        return cut, self._extras(random, drawn, tiles)

    def _drawn_tiles(self, random: SampleRandom) -> dict[str, Tensor]:
        assert self.tiles is not None
        return self.tiles.draw(random.at(_TILES), (self.crop.size, self.crop.size))

    def _extras(
        self, random: SampleRandom, drawn: list[dict[str, Tensor]], tiles: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """Return the drawn parameters of transforms and tiles that the method needs, and the mask."""
        extras: dict[str, Tensor] = {}
        for transform, params in zip(self.transforms, drawn, strict=True):
            extras |= transform.extras(params)
        if self.tiles is not None and tiles is not None:
            extras |= self.tiles.extras(tiles)
        if self.mask is not None:
            stream = random.at(crc32(type(self.mask).__name__.encode())).at(0)
            extras |= self.mask.extras(stream, (self.crop.size, self.crop.size))
        return extras


def _draw(transforms: Sequence[Transform], random: SampleRandom, side: int) -> list[dict[str, Tensor]]:
    """Draw the parameters of each transform."""
    streams = _streams(transforms, random)
    return [transform.draw(stream, (side, side)) for transform, stream in zip(transforms, streams, strict=True)]


def _streams(transforms: Sequence[Transform], random: SampleRandom) -> list[SampleRandom]:
    """Return the random numbers of each transform, keyed by its class and its position among transforms of that class,
    so that adding a transform of another class does not change them."""
    names = [type(transform).__name__ for transform in transforms]
    return [random.at(crc32(name.encode())).at(names[:number].count(name)) for number, name in enumerate(names)]
