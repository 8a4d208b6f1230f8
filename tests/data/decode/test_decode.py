import io
import struct
import time
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raysl.data.decode.decode import MAX_PIXELS, CorruptImage, can_reduce, decode, image_size

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


def test_sixteen_bits_a_channel_are_scaled_not_clipped() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH, 3)).astype(np.uint16)
    expected = torch.from_numpy((deep >> 8).astype(np.uint8)).permute(2, 0, 1)
    assert torch.equal(decode(png_of(deep)), expected)


def test_a_cmyk_jpeg_is_read_as_adobe_writes_it() -> None:
    ink = Image.new("CMYK", (16, 16), (255, 0, 0, 0))  # full cyan, stored inverted
    data = encoded(ink, "JPEG", quality=95)
    assert b"Adobe" in data
    assert decode(data)[:, 8, 8].tolist() == pytest.approx([0, 255, 255], abs=3)
    at = data.index(b"Adobe") - 4
    unmarked = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    assert torch.equal(decode(unmarked), decode(data))


def png_of(deep: np.ndarray, size: tuple[int, int] | None = None) -> bytes:
    """A PNG file of 16 bits a channel, [H, W, 3]; its header may claim another (width, height)."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width, _ = deep.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    header = struct.pack(">IIBBBBB", *(size or (width, height)), 16, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored.flip(2),
    3: lambda stored: stored.flip(1, 2),
    4: lambda stored: stored.flip(1),
    5: lambda stored: stored.transpose(1, 2),
    6: lambda stored: stored.rot90(-1, (1, 2)),
    7: lambda stored: stored.flip(1, 2).transpose(1, 2),
    8: lambda stored: stored.rot90(1, (1, 2)),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_that_was_turned_gives_an_upright_image(picture: Image.Image, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[271], exif[274] = "Maker", orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    image = decode(data := encoded(picture, kind, exif=exif, **options))
    assert distance(image, UPRIGHT[orientation](pixels(picture))) < 3
    assert image_size(data) == image.shape[1:]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_an_orientation_may_have_2_or_4_bytes_in_either_order(picture: Image.Image, order: str, kind: int) -> None:
    mark = b"II" if order == "<" else b"MM"
    value = struct.pack(f"{order}{'HH' if kind == 3 else 'I'}", *((6, 0) if kind == 3 else (6,)))
    block = mark + struct.pack(f"{order}HIHHHI", 42, 8, 1, 274, kind, 1) + value + bytes(4)
    data = encoded(picture, "JPEG", exif=b"Exif\0\0" + block)
    assert torch.equal(decode(data), decode(encoded(picture, "JPEG")).rot90(-1, (1, 2)))
    assert image_size(data) == (WIDTH, HEIGHT)


@pytest.mark.parametrize("bad", [0, 9, 65535])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_orientation_that_is_none_turns_nothing(picture: Image.Image, kind: str, bad: int) -> None:
    exif = Image.Exif()
    exif[274] = bad
    assert decode(encoded(picture, kind, exif=exif)).shape == (3, HEIGHT, WIDTH)


def test_an_orientation_is_found_behind_other_blocks(picture: Image.Image) -> None:
    exif = Image.Exif()
    exif[274] = 6
    data = encoded(picture, "JPEG", exif=exif)
    other = b"http://ns.adobe.com/xap/1.0/\0<x/>"
    before = data[:2] + b"\xff\xe1" + struct.pack(">H", len(other) + 2) + other + data[2:]
    assert image_size(before) == (WIDTH, HEIGHT)
    assert torch.equal(decode(before), decode(data))


# sizes without pixels


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_the_size_is_that_of_the_decoded_image(picture: Image.Image, kind: str) -> None:
    assert image_size(encoded(picture, kind)) == (HEIGHT, WIDTH)


def test_the_size_needs_the_header_alone(picture: Image.Image) -> None:
    data = encoded(picture, "JPEG", quality=90)
    header = data[: data.index(b"\xff\xda")]  # up to the scan
    assert image_size(header) == (HEIGHT, WIDTH)
    assert image_size(encoded(picture, "PNG")[:33]) == (HEIGHT, WIDTH)
    assert image_size(np.zeros((2, 5, 3), np.uint8)) == (2, 5)
    for broken in (header[:20], b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"text", b"", None):
        with pytest.raises(CorruptImage):
            image_size(broken)


def claiming(kind: str, width: int, height: int) -> bytes:
    """A small file whose header claims a size."""
    if kind == "PNG":
        return png_of(np.zeros((1, 1, 3), np.uint16), (width, height))
    data = bytearray(encoded(Image.new("RGB", (16, 16)), kind))
    if kind == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    else:
        frame = data.index(b"\xff\xc0")
        data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "JPEG"])
def test_a_small_file_that_claims_a_giant_image_is_refused_before_memory_is_taken(kind: str) -> None:
    data = claiming(kind, 60_000, 50_000)
    assert len(data) < 5000
    decode(encoded(Image.new("RGB", (2, 2)), kind))  # what is loaded at first use does not count
    tracemalloc.start()
    start = time.perf_counter()
    for read in (decode, image_size):
        with pytest.raises(CorruptImage, match=r"50000 x 60000|3000000000 pixels"):
            read(data)
    assert time.perf_counter() - start < 1
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert not can_reduce(data)


def test_the_limit_is_on_pixels_not_on_sides() -> None:
    assert image_size(claiming("JPEG", 65_000, MAX_PIXELS // 65_000)) == (MAX_PIXELS // 65_000, 65_000)
    with pytest.raises(CorruptImage, match=r"an image of 2754 x 65000 pixels; raysl reads 1 to 178,956,970 pixels"):
        image_size(claiming("JPEG", 65_000, MAX_PIXELS // 65_000 + 1))


# smaller on the way


@pytest.mark.parametrize("reduce", [2, 4, 8])
@pytest.mark.parametrize("size", [(64, 48), (65, 47), (33, 16), (9, 7), (3, 70), (1, 1)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_reduced_by_exactly_what_was_asked(
    picture: Image.Image, size: tuple[int, int], reduce: int, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(picture.resize(size), "JPEG", quality=95, exif=exif)
    height, width = image_size(data)
    assert can_reduce(data)
    assert decode(data, reduce).shape == (3, -(-height // reduce), -(-width // reduce))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_reduced_image_is_the_mean_of_its_blocks(picture: Image.Image, mode: str, options: dict[str, bool]) -> None:
    data = encoded(picture.resize((160, 96)).convert(mode), "JPEG", quality=95, **options)
    means = torch.nn.functional.avg_pool2d(decode(data).float(), 4).round().to(torch.uint8)
    assert distance(decode(data, 4), means) < 3


@pytest.mark.parametrize("image", [np.zeros((8, 8), np.uint8), b"PNG"])
def test_what_is_no_jpeg_is_not_reduced(picture: Image.Image, image: Any) -> None:
    image = encoded(picture, "PNG") if isinstance(image, bytes) else image
    assert not can_reduce(image)
    with pytest.raises(ValueError, match="reduce=2: a JPEG file can be decoded 1, 2, 4 or 8 times smaller"):
        decode(image, 2)
    with pytest.raises(ValueError, match="reduce=3"):
        decode(encoded(picture, "JPEG"), 3)


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


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_no_jpeg_that_was_cut_off_anywhere_comes_back_half_gray(picture: Image.Image, options: dict[str, Any]) -> None:
    data = encoded(picture, "JPEG", **options)
    for size in range(2, len(data), 7):
        for reduce in (1, 2):
            with pytest.raises(CorruptImage):
                decode(data[:size], reduce)
    zeros = data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    with pytest.raises(CorruptImage):
        decode(zeros)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_bytes_behind_the_end_of_an_image_do_no_harm(picture: Image.Image, kind: str) -> None:
    data = encoded(picture, kind)
    assert torch.equal(decode(data + b"\0" * 50 + b"trailer"), decode(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the entry is empty"),
        (None, "the entry is empty"),
        (b"<html>not found</html>", r"22 bytes that are not an image; they begin with b'<html>no'"),
    ],
)
def test_what_is_no_image_says_so(data: bytes | None, message: str) -> None:
    with pytest.raises(CorruptImage, match=message):
        decode(data)


def test_files_that_would_start_another_program_are_no_images(picture: Image.Image) -> None:
    with pytest.raises(CorruptImage, match="bytes that are not an image"):
        decode(encoded(picture, "EPS"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damage_anywhere_is_an_image_or_corrupt_and_nothing_else(picture: Image.Image, kind: str) -> None:
    data, random = encoded(picture, kind), np.random.default_rng(1)
    num_corrupt = 0
    for _ in range(100):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), 8):
            damaged[place] = random.integers(0, 256)
        try:
            image = decode(bytes(damaged))
            assert image_size(bytes(damaged)) == image.shape[1:]
        except CorruptImage:
            num_corrupt += 1
    assert num_corrupt > 1
