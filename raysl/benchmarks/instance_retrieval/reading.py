"""Images of a retrieval dataset, read one at a time in sizes that fit the network."""

from torch import Tensor

from raysl.benchmarks.instance_retrieval.truth import Box
from raysl.data.decode.decode import decode
from raysl.storage.folder import Folder
from raysl.transforms.functional import Interpolation, resize


def read_image(folder: Folder, path: str) -> Tensor:
    """Read the pixels of an image, uint8 [3, H, W].

    Raises:
        CorruptImage: if it cannot be decoded.
        ConfigError: if the file does not exist.
    """
    return decode(folder.read(path))


def sized(
    image: Tensor,
    size: int,
    scale: float = 1.0,
    box: Box | None = None,
    patch: int = 1,
    is_square: bool = False,
    interpolation: Interpolation = "bilinear",
) -> Tensor:
    """Scale an image, or a box of it, so that the whole has a longer side of `size * scale` pixels.

    A box keeps the scale of its image, so a query is as large as in the images of the database (Radenovic et al. 2018).

    Args:
        image: uint8 [3, H, W].
        size: longer side of the whole image in pixels; smaller ones are enlarged.
        scale: times that.
        box: cut out first, without the part outside of the image; ignored if all of it is outside.
        patch: sides are rounded to multiples of it, at least one.
        is_square: bring both sides to `size * scale`, whatever its shape.
    """
    factor = size * scale / max(image.shape[1:])
    cut = image if box is None else _cut(image, box)
    wanted = (size * scale,) * 2 if is_square else tuple(side * factor for side in cut.shape[1:])
    height, width = (max(1, round(side / patch)) * patch for side in wanted)
    return cut if (height, width) == tuple(cut.shape[1:]) else resize(cut, height, width, interpolation)


def _cut(image: Tensor, box: Box) -> Tensor:
    first, top, last, bottom = (max(0, round(edge)) for edge in box)
    cut = image[:, top:bottom, first:last]
    return cut if cut.numel() else image
