"""One view of an image: a crop, transforms of it, and what it is cut into."""

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
    """One view of an image: a crop, batched transforms in order, what it may be cut into, and which patches are masked.

    Args:
        crop: from the decoded image to a square.
        transforms: of the crop.
        tiles: cuts the crop into tiles, which then are the images of the view; None leaves it whole.
        tile_transforms: of the tiles, with numbers of its own for each.
        mask: of the patches of the crop, for the method; the pixels stay as they are.
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
        nobody = SampleRandom(0, 0, np.empty(0, np.int64), 0)
        drawn = self.draw(nobody)  # what does not go with the size of the crop raises here, before any image is read
        self._extras(nobody, drawn, None if self.tiles is None else self._drawn_tiles(nobody))
        _draw(self.tile_transforms, nobody, self.size)

    @property
    def num_images(self) -> int:
        """Images that the view comes to: its tiles, or itself."""
        return 1 if self.tiles is None else self.tiles.num_tiles

    @property
    def size(self) -> int:
        """Side of these images, in pixels."""
        return self.crop.size if self.tiles is None else self.tiles.size

    def draw(self, random: SampleRandom) -> list[dict[str, Tensor]]:
        """Parameters of each transform, for every sample of `random`."""
        return _draw(self.transforms, random, self.crop.size)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of what the view tells the method besides its pixels."""
        nobody = SampleRandom(0, 0, np.empty(0, np.int64), 0)
        tiles = None if self.tiles is None else self._drawn_tiles(nobody)
        return tuple(self._extras(nobody, self.draw(nobody), tiles))

    def augment(self, random: SampleRandom, crops: Tensor, place: int) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Run the view's transforms.

        Args:
            random: of the view, for B samples.
            crops: uint8 [B, V, C, S, S] of all views in the group, contiguous; changed in place.
            place: of this view among them.

        Returns:
            The tiles, uint8 [B, T, C, s, s], or None where there are none; and what a method has to know of what was
            drawn, [B, ...] on the CPU by name.
        """
        num_samples, num_views = crops.shape[:2]
        drawn = self.draw(random)
        if self.transforms:
            apply_chain(self.transforms, drawn, crops.flatten(0, 1), row_numbers(num_samples, num_views, place))
        if self.tiles is None:
            return None, self._extras(random, drawn, None)
        tiles = self._drawn_tiles(random)
        cut = self.tiles.cut(crops[:, place], tiles).contiguous()
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
        """What a method has to know, of the drawn parameters of the transforms and the tiles, and the mask."""
        found: dict[str, Tensor] = {}
        for transform, params in zip(self.transforms, drawn, strict=True):
            found |= transform.extras(params)
        if self.tiles is not None and tiles is not None:
            found |= self.tiles.extras(tiles)
        if self.mask is not None:
            stream = random.at(crc32(type(self.mask).__name__.encode())).at(0)
            found |= self.mask.extras(stream, (self.crop.size, self.crop.size))
        return found


def _draw(transforms: Sequence[Transform], random: SampleRandom, side: int) -> list[dict[str, Tensor]]:
    """Parameters of each transform."""
    streams = _streams(transforms, random)
    return [transform.draw(stream, (side, side)) for transform, stream in zip(transforms, streams, strict=True)]


def _streams(transforms: Sequence[Transform], random: SampleRandom) -> list[SampleRandom]:
    """The numbers of each transform, keyed by its class and its place among those of the same class, so that another
    transform may join the chain without moving them."""
    names = [type(transform).__name__ for transform in transforms]
    return [random.at(crc32(name.encode())).at(names[:place].count(name)) for place, name in enumerate(names)]
