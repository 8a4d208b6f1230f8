import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.data.decode import CorruptImage, decode
from raysl.data.load import Loaded, Loader, read_images
from raysl.data.order import Order
from raysl.data.source import Rows, Split, runs
from raysl.data.sources.synthetic import Synthetic
from raysl.hashing import Int64s
from raysl.transforms.view import evaluation_recipe

HEIGHT, WIDTH = 24, 40


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == torch.uint8
    return (a.float() - b.float()).abs().mean().item()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1"])
def test_a_png_of_any_mode_is_its_rgb_pixels(picture: Image.Image, mode: str) -> None:
    image = picture.convert(mode)
    assert torch.equal(decode(encoded(image, "PNG")), pixels(image))


@pytest.mark.parametrize("kind", ["GIF", "BMP", "WEBP", "TIFF"])
def test_other_formats_are_read(picture: Image.Image, kind: str) -> None:
    data = encoded(picture, kind, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(data)) as same:
        assert torch.equal(decode(data), pixels(same))


def test_the_first_frame_of_an_animation_counts(picture: Image.Image) -> None:
    other = Image.eval(picture, lambda value: 255 - value)
    data = encoded(picture, "GIF", save_all=True, append_images=[other])
    assert distance(decode(data), pixels(picture)) < 10


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_of_any_mode_is_close_to_what_was_saved(picture: Image.Image, mode: str) -> None:
    image = picture.convert(mode)
    assert distance(decode(encoded(image, "JPEG", quality=95, subsampling=0)), pixels(image)) < 3


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = np.linspace(0, 65535, HEIGHT * WIDTH).astype(np.uint16).reshape(HEIGHT, WIDTH)
    assert torch.equal(decode(encoded(Image.fromarray(deep), "PNG"))[1], torch.from_numpy((deep >> 8).astype(np.uint8)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_camera_that_was_turned_gives_an_upright_image(picture: Image.Image, kind: str) -> None:
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter to the left
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    upright = pixels(picture.transpose(Image.Transpose.ROTATE_270))
    assert distance(decode(encoded(picture, kind, exif=exif, **options)), upright) < 3


def test_pixels_pass_through() -> None:
    gray = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert torch.equal(decode(gray), torch.from_numpy(gray).expand(3, 2, 3))
    colour = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    assert torch.equal(decode(colour), torch.from_numpy(colour).permute(2, 0, 1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_a_file_that_was_cut_off_is_corrupt(picture: Image.Image, kind: str) -> None:
    data = encoded(picture, kind)
    for size in (3, 20, len(data) // 2):
        with pytest.raises(CorruptImage):
            decode(data[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the entry is empty"),
        (None, "the entry is empty"),
        (b"<html>not found</html>", r"22 bytes that are no image; they begin with b'<html>no'"),
    ],
)
def test_what_is_no_image_says_so(data: bytes | None, message: str) -> None:
    with pytest.raises(CorruptImage, match=message):
        decode(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damage_anywhere_is_an_image_or_corrupt_and_nothing_else(picture: Image.Image, kind: str) -> None:
    data, random = encoded(picture, kind), np.random.default_rng(1)
    num_corrupt = 0
    for _ in range(100):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), 8):
            damaged[place] = random.integers(0, 256)
        try:
            assert decode(bytes(damaged)).shape[0] == 3
        except CorruptImage:
            num_corrupt += 1
    assert num_corrupt > 10


class Shades(Split):
    """Images of one shade each, the index; those in `broken` are not decodable."""

    def __init__(self, num: int, unit: int, broken: set[int]) -> None:
        self.unit_sizes = runs(num, unit)
        self.broken = broken

    def read(self, index: Int64s) -> Rows:
        images = [b"broken" if row in self.broken else np.full((2, 2), row, np.uint8) for row in index.tolist()]
        return Rows(images, index * 10, [f"image {row}" for row in index.tolist()])


def shades(images: list[torch.Tensor]) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


def test_a_corrupt_image_is_replaced_by_the_next_valid_one_of_its_unit_with_its_label() -> None:
    split = Shades(10, unit=4, broken={1, 2, 7})
    images, labels, num_corrupt = read_images(split, np.array([1, 0, 2, 7, 3]))
    assert shades(images) == [3, 0, 3, 4, 3], "2 is corrupt as well; the unit of 7 starts again at 4"
    assert labels.tolist() == [30, 0, 30, 40, 30]
    assert num_corrupt == 3
    alone, _, _ = read_images(split, np.array([7]))
    assert shades(alone) == [4]


def test_a_unit_without_a_valid_image_names_the_first_problem() -> None:
    with pytest.raises(
        CorruptImage, match=r"no valid image in the 4 rows from 4 on; the first problem: image 6: 6 bytes"
    ):
        read_images(Shades(10, unit=4, broken={4, 5, 6, 7}), np.array([0, 6]))


def test_a_replaced_image_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    loaded = Loaded({"global": torch.zeros(2, 1, 3, 4, 4, dtype=torch.uint8)}, torch.arange(2), torch.arange(2), 1)
    source = Synthetic(Synthetic.Config(num_train=4, image_size=4))
    split = source.required("train")
    loader = Loader(
        split=split,
        recipe=evaluation_recipe(4),
        order=Order(0, split.fingerprint, split.unit_sizes, 2, 1, window=4, is_exact=True),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        augment_in_task=True,
        plain_recipe=evaluation_recipe(4),
    )
    loader.finish(loaded, 7, torch.device("cpu"))
    assert "step 7: 1 corrupt image(s) replaced" in caplog.text
