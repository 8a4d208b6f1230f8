"""Deep samples, the memory that decoding takes, and that nothing is printed meanwhile."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysl.data.decode.decode import MAX_RATIO, CorruptImage, can_reduce, decode, image_size
from raysl.data.decode.images import DECODED_BYTES

RAMP = np.linspace(0, 1, 24).reshape(4, 6)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def tiff(samples: np.ndarray) -> bytes:
    return encoded(Image.fromarray(samples), "TIFF")


def gray(data: bytes) -> np.ndarray:
    pixels = decode(data).numpy()
    assert (pixels == pixels[:1]).all()
    return pixels[0]


# more than 8 bits


def test_32_bit_integers_keep_8_bit_values() -> None:
    samples = np.rint(RAMP * 255).astype(np.int32)
    assert np.array_equal(gray(tiff(samples)), samples)


def test_32_bit_integers_beyond_8_bits_are_16_bit_values() -> None:
    samples = np.rint(RAMP * 65535).astype(np.int32)
    assert np.array_equal(gray(tiff(samples)), samples >> 8)
    assert np.array_equal(gray(tiff(samples)), gray(tiff(samples.astype(np.uint16))))


def test_floats_are_shares_of_white_or_8_bit_values() -> None:
    assert np.array_equal(gray(tiff(RAMP.astype(np.float32))), np.rint(RAMP.astype(np.float32) * 255))
    assert np.array_equal(gray(tiff((RAMP * 255).astype(np.float32))), (RAMP * 255).astype(np.float32).astype(np.uint8))


def test_a_deep_pgm_is_scaled_by_its_own_range_however_dark_it_is() -> None:
    dark = np.full((2, 3), 255, np.uint16)
    assert gray(encoded(Image.fromarray(dark), "PPM")).max() == 0


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            np.array([[-5, 7]], np.int32),
            r"32-bit integers from -5 to 7; only \[0, 255",
        ),
        (np.array([[0, 70_000]], np.int32), r"32-bit integers from 0 to 70000; .* store it with 8 or 16 bits"),
        (np.array([[-0.5, 0.5]], np.float32), r"32-bit floats from -0.5 to 0.5"),
        (np.array([[0, 1000]], np.float32), r"32-bit floats from 0 to 1000"),
        (np.array([[0, np.nan]], np.float32), r"some values are not finite"),
        (np.array([[np.nan, 0]], np.float32), r"32-bit floats from nan"),
        (np.array([[0, np.inf]], np.float32), r"32-bit floats from 0 to inf"),
    ],
)
def test_samples_of_an_unknown_range_are_refused_with_it(samples: np.ndarray, message: str) -> None:
    with pytest.raises(CorruptImage, match=message):
        decode(tiff(samples))


# memory


def test_an_image_of_extreme_shape_is_refused() -> None:
    line = encoded(Image.new("L", (1, MAX_RATIO)), "PNG")
    assert decode(line).shape == (3, MAX_RATIO, 1)
    for kind in ("PNG", "JPEG"):
        longer = encoded(Image.new("L", (1, MAX_RATIO + 1)), kind)
        for read in (decode, image_size):
            with pytest.raises(CorruptImage, match=r"an image of 1001 x 1 pixels; raysl reads sides of up to 1,000 to"):
                read(longer)
        assert not can_reduce(longer)


def test_a_format_that_takes_much_memory_has_a_lower_limit() -> None:
    data = bytearray(encoded(Image.new("RGB", (16, 16)), "JPEG", progressive=True))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = (12_000).to_bytes(2, "big") * 2
    with pytest.raises(CorruptImage, match=r"12000 x 12000 pixels; raysl reads up to 100,663,296 in this format"):
        decode(bytes(data))


MEASURE = """
import sys
import numpy as np
from raysl.data.decode import images
from raysl.data.decode.decode import decode
from raysl.data.stream.loader import Loader
from raysl.data.order import Order
from raysl.data.split import Rows, Split, runs
from tests.transforms.papers import RECIPES
from raysl.transforms.view_recipe import evaluation_recipe

class Same(Split):
    classes, is_random_access, unit_sizes, fingerprint = (), True, runs(24), "same"
    def read(self, index):
        return Rows([data] * len(index), np.full(len(index), -1), [""] * len(index))

def bytes_of(name):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) * 1024

def load():
    split = Same()
    order = Order(0, "x", split.unit_sizes, batch_size=24, lanes=1, window=32, is_exact=True)
    recipe = RECIPES["simclr"](size=32)
    Loader(split, recipe, order, (0,) * 3, (1,) * 3, True, evaluation_recipe(32)).load(0, 0, 1)

def peak(call):
    before = bytes_of("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    call()
    return bytes_of("VmHWM") - before

data = open(sys.argv[1], "rb").read()
decode(data), load()  # what is loaded at first use does not count
images.DECODED_BYTES >>= 4
for path in sys.argv[2:]:
    data = open(path, "rb").read()
    print(peak(lambda: decode(data)))
print(peak(load))
"""
SIDE = 2000
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "1": ("PNG", {}, 5),
    "P": ("PNG", {}, 5),
    "RGB": ("PNG", {"compress_level": 1}, 8),
    "RGBA": ("PNG", {"compress_level": 1}, 8),
    "F": ("TIFF", {}, 12),
    "CMYK": ("TIFF", {}, 12),
    "YCbCr": ("JPEG", {"progressive": True}, 16),
    "RGBa": ("WEBP", {"method": 0}, 16),
}
"""Format, options and bytes a pixel by mode."""


@pytest.mark.cluster
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is read from /proc")
def test_memory_is_that_of_one_image_and_a_bounded_number_of_decoded_ones(tmp_path: Path) -> None:
    """The last is read as a batch too: 24 images of 3 MB decoded, of which 16 MiB may wait."""
    small, last = tmp_path / "small", tmp_path / "last"
    small.write_bytes(encoded(Image.new("RGB", (64, 64)), "JPEG"))
    last.write_bytes(encoded(Image.new("RGBA", (SIDE // 2, SIDE // 2)), "PNG", compress_level=1))
    for mode, (kind, options, _) in KINDS.items():
        image = Image.new("RGBA", (SIDE, SIDE), (9, 99, 199, 100))
        image = image if mode == "RGBa" else image.convert("L" if mode == "F" else "RGB").convert(mode)
        (tmp_path / mode).write_bytes(encoded(image, kind, **options))
    command = [sys.executable, "-c", MEASURE, str(small), *(str(tmp_path / mode) for mode in KINDS), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = list(map(int, done.stdout.split()))
    spare = 10 << 20
    limits = {mode: SIDE**2 * bytes_a_pixel + spare for mode, (_, _, bytes_a_pixel) in KINDS.items()}
    limits |= {"last": (SIDE // 2) ** 2 * 8 + spare, "batch": (SIDE // 2) ** 2 * 11 + (DECODED_BYTES >> 4) + spare}
    assert {what: peak for peak, (what, limit) in zip(peaks, limits.items(), strict=True) if peak > limit} == {}


# quiet

NOISY = """
import io, struct, warnings
from PIL import Image
from raysl.data.decode.decode import CorruptImage, decode

def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()

palette = Image.new("P", (8, 8))
decode(encoded(palette, "PNG", transparency=b"\\0\\x80"), background=None)
decode(encoded(Image.new("1", (10_000, 9_100)), "PNG"))  # a "decompression bomb" to Pillow
exif = Image.Exif()
exif[274] = 6
jpeg = encoded(Image.new("RGB", (8, 8)), "JPEG", exif=exif.tobytes()[:-9] + b"\\xff" * 9)
tiff = encoded(Image.effect_noise((64, 64), 50), "TIFF", compression="tiff_lzw")
for data in (jpeg, jpeg[:300], jpeg[:200] + b"\\xff\\xd9" + jpeg[200:], tiff, tiff[:900], tiff[:-40] + bytes(40)):
    for place in range(0, len(data), 61):
        damaged = bytearray(data)
        damaged[place] ^= 0xA5
        for reduce in (1, 2):
            try:
                decode(bytes(damaged), reduce)
            except (CorruptImage, ValueError):
                pass
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    decode(encoded(palette, "PNG", transparency=b"\\0\\x80"), background=None)
print(len(told))
"""


@pytest.mark.cluster
def test_nothing_is_printed_of_odd_and_broken_images() -> None:
    done = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
