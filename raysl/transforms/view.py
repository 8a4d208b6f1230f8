"""One view of an image: a crop, its transforms, and its tiles or mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.transforms.chain import apply_chain, row_numbers
from raysl.transforms.crop import Crop
from raysl.transforms.transform import SampleRandom, Transform

if TYPE_CHECKING:
    from raysl.transforms.masking import Mask
    from raysl.transforms.tiles import Tiles

_TILES, _TILE = (crc32(name) for name in (b"tiles", b"tile"))  # slots of a view's random numbers
_NO_SAMPLES = SampleRandom(0, 0, np.empty(0, np.int64), 0)


@dataclass(frozen=True)
class View:
    """One view of an image: a crop, batched transforms in order, and either tiles or masked patches.

    >>> from raysl.transforms.crop import CenterCrop
    >>> view = View(CenterCrop(size=32, resize=36))
    >>> view.size, view.num_images
    (32, 1)

    Args:
        crop: transform from the decoded image to a square.
        transforms: applied to the crop.
        tiles: cuts the crop into tiles, which then are the view's images; None leaves it whole.
        tile_transforms: applied to the tiles, with fresh random numbers for each tile.
        mask: mask of the crop's patches, for the method; the pixels stay as they are.
        repeats: number of the view, among all views of the image, whose random numbers this one takes, so that it shows
            the same part of the image, flipped alike; None for numbers of its own.
        inside: number of the view, among all views of the image, whose crop this one's lies in: it is drawn as from an
            image that is that crop. Both are a `RandomResizedCrop`. None for a crop of the whole image.
        box: whether the method gets `box`, float32 [B, V, 6], to know which places of two views are the same: where the
            upper left corner of the view lies in the image (y, x), where its lower right corner lies (y, x), and the
            image's height and width, all in pixels of the whole image. The left edge of a view that was mirrored has
            the larger x. Without transforms that turn, shift or stretch, and without tiles.
    """

    crop: Crop
    transforms: tuple[Transform, ...] = ()
    tiles: "Tiles | None" = None
    tile_transforms: tuple[Transform, ...] = ()
    mask: "Mask | None" = None
    repeats: int | None = None
    inside: int | None = None
    box: bool = False

    def __post_init__(self) -> None:
        if self.tile_transforms and self.tiles is None:
            raise ValueError("tile_transforms need tiles; put them into transforms, or give tiles")
        if self.mask is not None and self.tiles is not None:
            raise ValueError("a mask covers patches of the crop, and tiles are cut out of it; give one of the two")
        if self.box and self.tiles is not None:
            raise ValueError("a box is that of the crop, and tiles are cut out of it; give one of the two")
        # Settings that do not fit the size of the crop raise here, before any image is read.
        _ = self.extra_names
        _draw(self.tile_transforms, _NO_SAMPLES, self.size)
        if self.box:
            if type(self.crop).edges is Crop.edges:
                raise ValueError(f"{type(self.crop).__name__} does not tell where its crops lie; give it `edges`")
            self._moved(torch.empty(0, 6), self.draw(_NO_SAMPLES))

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
        tiles = None if self.tiles is None else self._drawn_tiles(_NO_SAMPLES)
        return (*self._extras(_NO_SAMPLES, self.draw(_NO_SAMPLES), tiles), *(["box"] if self.box else []))

    def finish(
        self, random: SampleRandom, drawn: list[dict[str, Tensor]], crops: Tensor, box: Tensor | None = None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Cut the tiles of crops whose transforms are done.

        Args:
            random: numbers of the view, for B samples.
            drawn: the result of `draw`.
            crops: uint8 [B, C, S, S] of this view.
            box: where they lie, float [B, 6], if `box` is asked for.

        Returns:
            The tiles, uint8 [B, T, C, s, s], or None without tiles; and the extras for the method, [B, ...] by name,
            on the CPU except for the box, which stays on its device.
        """
        if self.tiles is None:
            extras = self._extras(random, drawn, None)
            return None, extras if box is None else extras | {"box": self._moved(box, drawn)}
        tiles = self._drawn_tiles(random)
        cut = self.tiles.cut(crops, tiles).contiguous()
        streams = [random.at(_TILE).at(tile) for tile in range(self.num_images)]
        values = [_draw(self.tile_transforms, stream, self.size) for stream in streams]
        _apply(self.tile_transforms, values, cut, range(self.num_images))
        return cut, self._extras(random, drawn, tiles)

    def _moved(self, box: Tensor, drawn: list[dict[str, Tensor]]) -> Tensor:
        """Return the boxes [B, 6] of crops after the transforms."""
        for transform, params in zip(self.transforms, drawn, strict=True):
            box = transform.moved(box, params)
        return box

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
            # a checksum of the name, because Python's hash differs between processes
            stream = random.at(crc32(type(self.mask).__name__.encode())).at(0)
            extras |= self.mask.extras(stream, (self.crop.size, self.crop.size))
        return extras


def augment(
    views: Sequence[View], randoms: Sequence[SampleRandom], crops: Tensor, boxes: Tensor | None = None
) -> list[tuple[Tensor | None, dict[str, Tensor]]]:
    """Run the transforms of a group's views; those with the same transforms go through them together.

    Args:
        views: views of the group.
        randoms: numbers of each view, for B samples.
        crops: uint8 [B, V, C, S, S] of all views, contiguous; changed in place.
        boxes: where they lie, float [B, V, 6], if the views ask for it.

    Returns:
        The result of `View.finish` for each view.
    """
    drawn = [view.draw(random) for view, random in zip(views, randoms, strict=True)]
    waiting = list(range(len(views)))
    while waiting:
        transforms = views[waiting[0]].transforms
        alike = [number for number in waiting if views[number].transforms == transforms]
        waiting = [number for number in waiting if number not in alike]
        _apply(transforms, [drawn[number] for number in alike], crops, alike)
    return [
        view.finish(randoms[number], drawn[number], crops[:, number], None if boxes is None else boxes[:, number])
        for number, view in enumerate(views)
    ]


def _apply(
    transforms: tuple[Transform, ...], drawn: list[list[dict[str, Tensor]]], images: Tensor, numbers: Sequence[int]
) -> None:
    """Run a chain on some of the V images [B, V, C, H, W] of each sample, in place, with what it drew for each."""
    if not transforms:
        return
    params = [
        {name: torch.cat([values[name] for values in parts]) for name in parts[0]} for parts in zip(*drawn, strict=True)
    ]
    rows = torch.cat([row_numbers(images.shape[0], images.shape[1], number) for number in numbers])
    apply_chain(transforms, params, images.flatten(0, 1), rows)


def _draw(transforms: Sequence[Transform], random: SampleRandom, side: int) -> list[dict[str, Tensor]]:
    """Draw the parameters of each transform.

    Random numbers are keyed by the transform's class and its position among transforms of that class, so that adding a
    transform of another class does not change them.
    """
    names = [type(transform).__name__ for transform in transforms]
    streams = [random.at(crc32(name.encode())).at(names[:number].count(name)) for number, name in enumerate(names)]
    drawn = [transform.draw(stream, (side, side)) for transform, stream in zip(transforms, streams, strict=True)]
    for name, params in zip(names, drawn, strict=True):
        if not isinstance(params, dict) or any(not isinstance(value, Tensor) for value in params.values()):
            raise ConfigError(f"{name}.draw returned {params!r:.200}; return tensors [B, ...] by name, {{}} for none")
    return drawn
