"""Transparent images: what is seen through them is the setting's colour, everywhere."""

import io
import struct
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.config.background import WHITE, Color, parse_color
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, is_may_change
from raysl.data.decode.decode import decode
from raysl.data.decode.images import read_images
from raysl.data.given import to_stored
from raysl.data.ingest.shard import encode_for_storage
from raysl.data.order import Order
from raysl.data.source import Source
from raysl.data.sources.catalog import Catalog
from raysl.data.sources.concat import Concat
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.paired import Paired
from raysl.data.sources.subset import sample_of
from raysl.data.stream.loader import Loader
from raysl.errors import ConfigError
from raysl.preview.samples import sample_views
from raysl.transforms.view_recipe import evaluation_recipe
from tests.data.samples import sent
from tests.transforms.papers import RECIPES

RED: Color = (255, 0, 0)
COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8)
COLOURS[0, :, 3], COLOURS[1, :, 3] = 0, 255
RGBA = Image.fromarray(COLOURS)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def blended(rgba: np.ndarray, background: Color) -> np.ndarray:
    """The definition, rounded, for each pixel of [H, W, 4]."""
    alpha = rgba[..., 3:].astype(float) / 255
    return np.rint(alpha * rgba[..., :3] + (1 - alpha) * np.array(background)).astype(np.uint8)


def seen(data: bytes | np.ndarray, background: Color | None) -> np.ndarray:
    pixels: np.ndarray = decode(data, background=background).permute(1, 2, 0).numpy()
    return pixels


def png(width: int, depth: int, kind: int, row: bytes, key: bytes, palette: bytes = b"") -> bytes:
    """A PNG file of one row with a tRNS chunk."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, 1, depth, kind, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"tRNS", key), (b"IDAT", zlib.compress(b"\0" + row))]
    written = [chunk(name, content) for name, content in chunks if content]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("background", [WHITE, RED, (12, 200, 99)])
def test_an_alpha_channel_blends_with_the_background(kind: str, background: Color) -> None:
    data = encoded(RGBA, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    assert np.array_equal(seen(data, background), blended(COLOURS, background))


def test_grey_with_alpha_blends() -> None:
    gray = RGBA.convert("LA")
    expected = blended(np.asarray(gray.convert("RGBA")), RED)
    assert np.array_equal(seen(encoded(gray, "PNG"), RED), expected)
    assert np.array_equal(seen(encoded(gray, "TIFF"), RED), expected)


def test_pixels_with_alpha_blend_like_files() -> None:
    assert np.array_equal(seen(COLOURS, RED), blended(COLOURS, RED))
    assert np.array_equal(seen(COLOURS, None), COLOURS[..., :3])
    assert np.array_equal(seen(encode_for_storage(COLOURS, None, 95), RED), blended(COLOURS, RED))


PALETTE = bytes(range(1, 13))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(4, 2, 3, b"\x1b", b"\0\x80", PALETTE), [[255, 0, 0], [129, 3, 3], [7, 8, 9], [10, 11, 12]]),
        (png(4, 8, 3, b"\0\1\2\1", b"\xff\0", PALETTE), [[1, 2, 3], [255, 0, 0], [7, 8, 9], [255, 0, 0]]),
        (png(8, 1, 0, b"\xa5", b"\0\1"), [[255, 0, 0] if bit == "1" else [0] * 3 for bit in "10100101"]),
        (png(4, 2, 0, b"\x1b", b"\0\2"), [[0] * 3, [85] * 3, [255, 0, 0], [255] * 3]),
        (png(2, 4, 0, b"\x3c", b"\0\3"), [[255, 0, 0], [204] * 3]),
        (png(2, 8, 0, b"\x3c\x04", b"\0\4"), [[60] * 3, [255, 0, 0]]),
        (png(2, 16, 0, b"\x3c\x04\1\2", b"\1\2"), [[60] * 3, [255, 0, 0]]),
        (png(2, 8, 2, b"\1\2\3\4\5\6", b"\0\1\0\2\0\3"), [[255, 0, 0], [4, 5, 6]]),
        (png(2, 16, 2, bytes(range(1, 13)), bytes(range(1, 7))), [[255, 0, 0], [7, 9, 11]]),
        (png(1, 16, 6, b"\1\2\3\4\5\6\x80\0", b""), [[128, 2, 3]]),
        (png(1, 16, 4, b"\5\6\0\0", b""), [[255, 0, 0]]),
    ],
    ids=["palette", "index", "1 bit", "2 bit", "4 bit", "8 bit", "16 bit", "RGB", "RGB 16", "RGBA 16", "LA 16"],
)
def test_every_kind_of_transparency_of_png_shows_the_background(data: bytes, expected: list[list[int]]) -> None:
    assert seen(data, RED).tolist() == [expected]


def test_the_transparent_colour_of_a_gif_shows_the_background() -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([9, 9, 9, 0, 200, 0])
    image.putpixel((2, 1), 0)
    pixels = seen(encoded(image, "GIF", transparency=0), RED)
    assert pixels[1, 2].tolist() == [255, 0, 0]
    assert pixels[0, 0].tolist() == [0, 200, 0]


def test_strips_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = Image.fromarray((COLOURS[..., 0].astype(np.uint16) << 8) + 7)
    images = [encoded(RGBA.convert(mode), "PNG") for mode in ("RGBA", "P", "1", "LA", "RGB")]
    images += [encoded(deep, "PNG"), encoded(RGBA.quantize(5), "PNG"), encoded(RGBA.convert("CMYK"), "TIFF")]
    whole = [seen(image, RED) for image in images]
    monkeypatch.setattr("raysl.data.decode.pixels.STRIP_PIXELS", 16)
    assert all(np.array_equal(seen(image, RED), before) for image, before in zip(images, whole, strict=True))


@pytest.mark.parametrize("mode", ["RGBA", "RGBa", "LA", "La", "PA"])
def test_an_image_in_memory_keeps_its_transparency(mode: str) -> None:
    if mode == "PA":
        image = RGBA.quantize(7).convert("PA")
    else:
        image = (RGBA.convert("LA") if mode == "La" else RGBA).convert(mode)
    colours = np.asarray((image.convert("LA") if mode == "La" else image).convert("RGBA"))
    stored = to_stored(image, "image")
    assert np.abs(seen(stored, RED).astype(int) - blended(colours, RED)).max() <= 1
    assert (seen(stored, RED)[0] == RED).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA"])
def test_none_drops_alpha_as_torchvision_does(mode: str) -> None:
    image = RGBA.quantize(7) if mode == "P" else RGBA.convert(mode)
    data = encoded(image, "TIFF" if mode == "PA" else "PNG")
    with Image.open(io.BytesIO(data)) as file:
        assert np.array_equal(seen(data, None), np.asarray(file.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_without_alpha_the_background_changes_no_bit(kind: str, mode: str) -> None:
    image = RGBA.convert("RGB").convert(mode)
    data = encoded(image.convert("RGB") if mode == "P" and kind in ("JPEG", "WEBP") else image, kind)
    assert np.array_equal(seen(data, RED), seen(data, None))
    opaque = image.convert("RGBA")
    assert np.array_equal(seen(encoded(opaque, "PNG"), RED), np.asarray(opaque)[..., :3])


# the setting


@pytest.mark.parametrize(
    ("background", "color"),
    [("white", WHITE), ("Black", (0, 0, 0)), ("#0a0b0c", (10, 11, 12)), ((1, 2, 3), (1, 2, 3)), ("none", None)],
)
def test_a_background_is_a_name_a_code_three_numbers_or_none(background: Any, color: Color | None) -> None:
    assert parse_color(background) == color


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("whit", "data.background: 'whit' is not a colour; give a name such as white"),
        ("[300,0,0]", "data.background[0]: 300 is out of range; give a number in [0, 255]"),
        ("[-1,0,0]", "data.background[0]: -1 is out of range; give a number in [0, 255]"),
        ("'#ffffff80'", "data.background: '#ffffff80' has an alpha channel; give a name"),
        ("'rgb(300,0,0)'", "data.background: 'rgb(300,0,0)' is [300, 0, 0], outside [0, 255]; give a name"),
        ("[1,2]", "data.background: [1, 2] has 2 values; it needs 3"),
        ("null", "data.background: null is not of type text or list of 3"),
        ("7", "data.background: '7' is not a colour"),
    ],
)
def test_what_is_no_colour_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [f"data.background={word}"])
    assert str(caught.value).startswith(message)


def test_the_background_is_part_of_what_defines_a_run() -> None:
    assert load_config("quickstart", ["data.background=none"]).data.background == "none"
    assert load_config("quickstart", ["data.background=[1,2,3]"]).data.background == (1, 2, 3)
    (field,) = (field for field in fields(DataConfig) if field.name == "background")
    assert not is_may_change(field.metadata)


# where images are read


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder.Config:
    """Three images that are wholly transparent; black is stored under the alpha."""
    for name in ("train/a/1.png", "train/a/2.png", "train/a/3.png", "val/a/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "PNG"))
    return ImageFolder.Config(path=str(tmp_path))


def sources(folder: ImageFolder.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Source]:
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text(f"mine: {{name: image_folder, path: {folder.path}}}")
    monkeypatch.setenv("RAYSL_CATALOG", str(catalog))
    chosen: dict[str, Any] = {"limit": 2, "label_type": "zero", "background": "red"}
    return {
        "folder": ImageFolder(replace(folder, **chosen)),
        "catalog": Catalog(Catalog.Config(dataset="mine", **chosen)),
        "concat": Concat(Concat.Config(sources={"a": folder, "b": folder}, **chosen)),
        "paired": Paired(Paired.Config(sources={"a": folder, "b": folder}, **chosen)),
    }


@pytest.mark.thorough
def test_every_reader_of_a_dataset_sees_its_background(
    folder: ImageFolder.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = torch.tensor(RED, dtype=torch.uint8)
    for source in sources(folder, tmp_path, monkeypatch).values():
        for name in ("train", "test"):
            split = sent(source.required(name))
            for pictures in read_images(split, np.arange(1)).pictures:
                assert torch.equal(pictures.images[0][:, 0, 0], red)
        train = source.required("train")
        assert sample_of(train, 1).background == RED
        recipe, plain = RECIPES["simclr"](size=8), evaluation_recipe(8)
        order = Order(0, "x", train.unit_sizes, batch_size=2, lanes=1, window=8, is_exact=True)
        loader = Loader(train, plain, order, (0, 0, 0), (1, 1, 1), augment_in_task=True, plain_recipe=plain)
        assert torch.equal(loader.load(0, 0, 1).views["image"][0, 0, :, 0, 0], red)
        (batch,) = loader.plain(0, 1, torch.device("cpu"))
        assert torch.equal(batch.views["image"][1, 0, :, 3, 3], red / 255)
        shown = sample_views(train, recipe, seed=0, num=1, num_epochs=1)
        assert np.asarray(shown[0].stored[0].picture)[0, 0].tolist() == list(RED)


def test_the_default_is_white_and_the_source_keeps_its_own(folder: ImageFolder.Config) -> None:
    source = ImageFolder(folder)
    assert read_images(source.required("train"), np.arange(1)).pictures[0].images[0].min() == 255
    dropped = ImageFolder(replace(folder, background="none")).required("train")
    assert read_images(dropped, np.arange(1)).pictures[0].images[0].max() == 0
    assert source.required("train").fingerprint == dropped.fingerprint, "the images are the same"
