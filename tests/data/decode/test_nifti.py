"""Pixels of NIfTI files of one slice: slope and intercept, ranges, damage; beside nibabel's own values."""

import gzip
import io
import sys
from typing import Any

import nibabel
import numpy as np
import pytest

from raysl.data.decode import nifti as nifti_files
from raysl.data.decode.bands import Bands, WrongBands
from raysl.data.decode.decode import CorruptImage, decode, image_size
from raysl.data.decode.gzipped import inflated_head, read_inflated
from raysl.data.decode.nifti import find_slices, is_nifti, without_text
from raysl.data.limits import Limits, limiting
from raysl.data.split import Missing
from tests.data.nifti import TEXT, nifti, nifti_gz

RANDOM = np.random.default_rng(0)
CT = RANDOM.integers(-1000, 1000, (7, 5)).astype(np.int16)  # [X, Y]
SOFT = (-160.0, 240.0)
TYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


def window(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """One pixel after the other."""
    pixels = np.zeros(values.shape, np.uint8)
    for place in np.ndindex(values.shape):
        share = (float(values[place]) - low) / (high - low)
        pixels[place] = round(255 * min(1.0, max(0.0, share)))
    return pixels


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("slope", "inter"), [(1.0, 0.0), (2.0, -100.0), (0.0, 7.0), (float("nan"), 0.0)])
def test_values_are_those_of_nibabel_with_rows_along_the_second_axis(
    version: int, order: str, slope: float, inter: float
) -> None:
    file = nifti(CT[:, :, None], slope, inter, version, order)
    kind: Any = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    theirs = kind.from_bytes(file).get_fdata()[:, :, 0].T  # [Y, X]
    assert is_nifti(file)
    assert image_size(file) == theirs.shape == (5, 7)
    assert np.array_equal(decode(file, bands=Bands(1, SOFT))[0].numpy(), window(theirs, *SOFT))


@pytest.mark.parametrize("kind", TYPES)
def test_all_types_of_numbers_are_read(kind: str) -> None:
    values = RANDOM.integers(0, 100, (4, 3)).astype(kind)
    pixels = decode(nifti(values), bands=Bands(1, (0.0, 127.0)))[0].numpy()
    assert np.array_equal(pixels, window(values.T.astype(np.float64), 0, 127))


def test_values_of_8_bits_need_no_range_and_may_be_in_colour() -> None:
    values = RANDOM.integers(0, 256, (4, 3)).astype(np.uint8)
    assert np.array_equal(decode(nifti(values), bands=Bands(1))[0], values.T)
    assert np.array_equal(decode(nifti(values)), np.broadcast_to(values.T, (3, 3, 4)))


@pytest.mark.parametrize("bands", [None, Bands(1)])
def test_other_values_without_a_range_are_refused_with_their_own(bands: Bands | None) -> None:
    values = np.array([[0.5, np.nan, -3.0], [1.0, 812.25, 2.0]], np.float32)
    with pytest.raises(WrongBands, match=r"values are float32 from -3 to 812.25, and .*set data.channels=1 and data"):
        decode(nifti(values), bands=bands)
    file = bytearray(nifti(CT, slope=0.5))
    file[124:132] = np.array([400, -20], "<f4").tobytes()  # cal_max and cal_min
    with pytest.raises(WrongBands, match=r"are float64 from .* \(its header shows -20 to 400\), and the pipeline"):
        decode(bytes(file), bands=bands)


@pytest.mark.parametrize("bands", [None, Bands(1, SOFT)])
def test_a_compressed_volume_outside_of_a_folder_says_what_reads_it(bands: Bands | None) -> None:
    with pytest.raises(CorruptImage, match=r"compressed by gzip; image_folder and file_list read \.nii\.gz, and raysl"):
        decode(nifti_gz(CT), bands=bands)


def test_values_that_are_no_numbers_make_a_slice_corrupt() -> None:
    with pytest.raises(CorruptImage, match="some values are not finite"):
        decode(nifti(np.full((2, 2), np.nan, np.float32)), bands=Bands(1, (0, 1)))


def test_a_slice_of_other_channels_is_refused() -> None:
    with pytest.raises(WrongBands, match=r"it has 1 channels, and data\.channels=3"):
        decode(nifti(CT), bands=Bands(3, SOFT))


def _changed(content: bytes, at: int, value: int, kind: str = "<i2") -> bytes:
    changed = np.array(value, kind).tobytes()
    return content[:at] + changed + content[at + len(changed) :]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (nifti(CT)[:-1], "ends before its slice does; is the download complete"),
        (nifti(CT)[:200], "200 bytes that are not"),
        (nifti(CT)[:348], "ends before its slice does"),
        (nifti(np.zeros((3, 2, 4), np.int16)), "a NIfTI file of 4 slices; image_folder and file_list make each an im"),
        (_changed(nifti(CT), 40, 1), r"whose sides are \[7\]; raysl reads slices of two axes"),
        (_changed(nifti(CT), 42, -5), r"whose sides are \[-5, 5\]"),
        (_changed(nifti(CT), 70, 32), "a NIfTI file of complex64; raysl reads one number"),
        (_changed(nifti(CT), 70, 128), "a NIfTI file of colours; raysl reads one number"),
        (_changed(nifti(CT), 70, 9999), "a damaged NIfTI file: "),
        (_changed(nifti(CT), 108, 0, "<f4"), "its values would begin at byte 0, inside its header"),
        (nifti(CT).replace(b"n+1\0", b"ni1\0"), "values are in another file"),
    ],
)
def test_what_cannot_be_read_is_corrupt_with_its_reason(file: bytes, message: str) -> None:
    if b"ni1\0" in file:
        with pytest.raises(CorruptImage, match=message):
            find_slices(io.BytesIO(file), len(file))
        return
    with pytest.raises(CorruptImage, match=message):
        decode(file, bands=Bands(1, SOFT))


def test_a_claimed_size_takes_no_memory() -> None:
    huge = _changed(_changed(nifti(CT), 42, 32_000), 44, 32_000)
    with pytest.raises(CorruptImage, match=r"an image of 32000 x 32000 pixels"):
        decode(huge, bands=Bands(1, SOFT))
    many = _changed(_changed(_changed(nifti(CT[:, :, None, None]), 40, 4), 46, 30_000), 48, 30_000)
    with pytest.raises(CorruptImage, match="claims 900,000,000 slices"):
        find_slices(io.BytesIO(many), None)
    with limiting(Limits(max_pixels=34)), pytest.raises(CorruptImage, match="raysl reads 1 to 34 pixels"):
        image_size(nifti(CT))


def test_without_nibabel_a_slice_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    nifti_files._nibabel.cache_clear()
    try:
        with pytest.raises(CorruptImage, match=r"pip install 'raysl\[medical\]'"):
            decode(nifti(CT), bands=Bands(1, SOFT))
    finally:
        nifti_files._nibabel.cache_clear()


def test_a_stored_slice_has_no_text_of_the_patient_and_the_same_pixels() -> None:
    file = nifti(CT, slope=0.5, inter=3.0)
    stored = without_text(file)
    assert TEXT.encode() in file
    assert TEXT.encode() not in stored
    assert np.array_equal(decode(stored, bands=Bands(1, SOFT)), decode(file, bands=Bands(1, SOFT)))


def test_parts_of_a_compressed_file_are_read_in_any_order_and_more_than_once() -> None:
    content = RANDOM.integers(0, 256, 5000).astype(np.uint8).tobytes()
    file = io.BytesIO(gzip.compress(content[:2000]) + gzip.compress(content[2000:]))  # two members, as of bgzip
    offsets, sizes = np.array([4000, 10, 10, 1990]), np.array([500, 20, 20, 30])
    parts = read_inflated(file, offsets, sizes)
    assert parts == [content[first : first + size] for first, size in zip(offsets, sizes, strict=True)]


def test_parts_in_front_of_damage_are_read_and_those_behind_it_are_missing() -> None:
    content = RANDOM.integers(0, 16, 50_000).astype(np.uint8).tobytes()  # half as long when it is compressed
    whole = gzip.compress(content)
    offsets, sizes = np.array([40_000, 100]), np.array([100, 100])
    for file in (whole[:15_000], whole[:15_000] + bytes(1000) + whole[16_000:]):
        late, early = read_inflated(io.BytesIO(file), offsets, sizes)
        assert early == content[100:200]
        assert isinstance(late, Missing)
        assert "gzip" in late.reason
    short = read_inflated(io.BytesIO(gzip.compress(content[:500])), offsets, sizes)
    assert short == [Missing("a gzip file that ends before its slices do; is the download complete?"), content[100:200]]
    with pytest.raises(CorruptImage, match="a damaged gzip file"):
        inflated_head(io.BytesIO(whole[:15] + bytes(500)), 544)
