"""Images whose channels are taken as they are stored: arrays, TIFF, PNG; what is refused, and with which words."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysl.data.decode.bands import Bands
from raysl.data.decode.decode import CorruptImage, decode

RANDOM = np.random.default_rng(0)
FOUR = RANDOM.integers(0, 10_000, (6, 8, 4)).astype(np.uint16)
RANGE = (0.0, 10_000.0)
SCALED = np.rint(FOUR.astype(np.float64) * 255 / 10_000).astype(np.uint8).transpose(2, 0, 1)


def npy(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, samples)
    return file.getvalue()


def npz(**samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **samples)
    return file.getvalue()


def encoded(samples: np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(samples).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "file",
    [
        npy(FOUR),
        npy(FOUR.transpose(2, 0, 1)),
        npy(np.asfortranarray(FOUR)),
        npy(FOUR.astype(">i4")),
        npy(FOUR.astype(np.float32)),
        npz(image=FOUR),
        npz(image=FOUR, label=np.array(3)),
        npz(other=FOUR),
    ],
    ids=["last", "first", "fortran", "big endian", "floats", "npz", "npz of several", "npz of one"],
)
def test_an_array_is_scaled_by_the_range_and_its_channels_come_first(file: bytes) -> None:
    assert np.array_equal(decode(file, bands=Bands(4, RANGE)), SCALED)


def test_values_outside_the_range_are_cut_off_and_negative_ones_are_values() -> None:
    samples = np.array([[-30.0, -20.0, 0.0, 20.0, 90.0]], np.float32)
    assert decode(npy(samples), bands=Bands(1, (-20, 20))).flatten().tolist() == [0, 0, 128, 255, 255]


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 12])
def test_8_bit_values_stay_as_they_are_for_any_number_of_channels(num: int) -> None:
    samples = RANDOM.integers(0, 256, (5, 7, num)).astype(np.uint8)
    assert np.array_equal(decode(npy(samples), bands=Bands(num)), samples.transpose(2, 0, 1))
    assert np.array_equal(decode(samples, bands=Bands(num)), samples.transpose(2, 0, 1)), "pixels in memory"


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_greys_keep_all_their_bits_until_the_range_scales_them(kind: str) -> None:
    samples = np.arange(1000, 1256, dtype=np.uint16).reshape(16, 16)
    found = decode(encoded(samples, kind), bands=Bands(1, (1000, 1255)))
    assert np.array_equal(found[0], samples - 1000)


@pytest.mark.parametrize(("mode", "num"), [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4), ("CMYK", 4)])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_files_of_pillow_give_the_bands_they_store_and_alpha_is_one_of_them(mode: str, num: int, kind: str) -> None:
    if (mode, kind) == ("CMYK", "PNG"):
        return
    samples = RANDOM.integers(0, 256, (5, 7, num)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(samples[..., 0] if num == 1 else samples, mode).save(file, kind)
    assert np.array_equal(decode(file.getvalue(), bands=Bands(num)), samples.transpose(2, 0, 1))


def test_a_grey_jpeg_file_is_one_channel_and_is_turned_upright() -> None:
    samples = np.repeat(np.arange(0, 240, 30, dtype=np.uint8)[:, None], 16, axis=1)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(encoded(samples, "JPEG", exif=exif, quality=100), bands=Bands(1))
    assert found.shape == (1, 16, 8)
    assert abs(found[0, 0].int().numpy() - samples[::-1, 0].astype(int)).max() <= 4


@pytest.mark.parametrize(
    ("file", "bands", "message"),
    [
        (npy(FOUR), Bands(3, RANGE), "it has 4 channels, and data.channels=3"),
        (npy(FOUR), Bands(4), "its values are uint16 from .* to .*set data.value_range="),
        (encoded(FOUR[..., 0].astype(np.uint8), "PNG"), Bands(4), "it has 1 channels, and data.channels=4"),
        (npy(np.zeros((2, 2, 2, 2))), Bands(2), r"an array of float64 \[2, 2, 2, 2\]; store numbers as \[H, W\]"),
        (npy(np.array(["a", "b"])), Bands(1), "an array of <U1"),
        (npz(a=FOUR, b=FOUR), Bands(4), "an .npz file of a.npy, b.npy; store one array, or call it 'image'"),
        (npy(FOUR)[:-9], Bands(4, RANGE), "a damaged array"),
        (npz(image=FOUR)[:-9], Bands(4, RANGE), "a damaged array"),
        (npy(np.full((2, 2), np.nan)), Bands(1, RANGE), "some values are not finite"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(file: bytes, bands: Bands, message: str) -> None:
    with pytest.raises(CorruptImage, match=message):
        decode(file, bands=bands)


def test_nothing_is_unpickled_and_a_header_cannot_claim_memory() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptImage, match="array of Python objects"):
        decode(file.getvalue(), bands=Bands(1))
    small = npy(np.zeros((2, 2), np.uint8))
    for broken in (small.replace(b"(2, 2), }       ", b"(2, 99999999), }"), small.replace(b"(2, 2), }", b"(2, 2), (")):
        assert broken != small
        with pytest.raises(CorruptImage, match="a damaged array"):
            decode(broken, bands=Bands(1))


def test_a_tiff_that_pillow_would_cut_to_8_bits_or_three_bands_goes_to_tifffile() -> None:
    tifffile = pytest.importorskip("tifffile")
    for planar in ("contig", "separate"):
        file = io.BytesIO()
        samples = FOUR if planar == "contig" else FOUR.transpose(2, 0, 1)
        tifffile.imwrite(file, samples, photometric="minisblack", planarconfig=planar)
        assert np.array_equal(decode(file.getvalue(), bands=Bands(4, RANGE)), SCALED), planar


def test_without_tifffile_such_a_file_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    with pytest.raises(CorruptImage, match=r"pip install 'raysl\[tiff\]'"):
        decode(Path(__file__).with_name("four_bands.tif").read_bytes(), bands=Bands(4, RANGE))
