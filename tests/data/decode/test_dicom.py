"""Pixels of DICOM files: values of the modality, windows, inverted greys, colours; beside plain formulas."""

import io
import struct
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import (
    MPEG2MPML,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    RLELossless,
)

from raysl.data.decode import dicom_header
from raysl.data.decode.bands import Bands, WrongBands
from raysl.data.decode.decode import CorruptImage, decode, image_size
from raysl.data.decode.dicom_header import is_dicom, without_patient
from tests.data.dicom import PATIENT, dataset, dicom, written

RANDOM = np.random.default_rng(0)
CT = RANDOM.integers(0, 4096, (5, 7)).astype(np.int16)
UNITS = {"RescaleSlope": "2", "RescaleIntercept": "-1024"}
SOFT = (-160.0, 240.0)


def plain(samples: np.ndarray, low: float, high: float) -> np.ndarray:
    """One pixel after the other."""
    pixels = np.zeros(samples.shape, np.uint8)
    for place in np.ndindex(samples.shape):
        share = (float(samples[place]) - low) / (high - low)
        pixels[place] = round(255 * min(1.0, max(0.0, share)))
    return pixels


def one(file: bytes, bands: Bands | None = None) -> np.ndarray:
    """The first channel; in RGB all three are equal."""
    pixels = decode(file, bands=bands)
    assert pixels.shape[0] == (3 if bands is None else 1)
    assert bool((pixels == pixels[:1]).all())
    return pixels[0].numpy()


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian])
def test_the_range_is_of_values_of_the_modality(syntax: str) -> None:
    file = dicom(CT, syntax, **UNITS)
    assert is_dicom(file)
    assert image_size(file) == (5, 7)
    assert np.array_equal(one(file, Bands(1, SOFT)), plain(2.0 * CT - 1024, *SOFT))


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32])
def test_images_of_few_values_have_the_same_pixels(kind: type) -> None:
    samples = RANDOM.integers(3, 90, (30, 40)).astype(kind)
    for bands in (Bands(1, (-10.0, 120.0)), None):
        file = dicom(samples, WindowCenter="55.5", WindowWidth="131", **UNITS | {"RescaleIntercept": "-30"})
        low, high = (-10.0, 120.0)
        assert np.array_equal(one(file, bands), plain(2.0 * samples - 30, low, high))


def test_low_values_of_monochrome1_are_bright() -> None:
    file = dicom(CT, PhotometricInterpretation="MONOCHROME1", **UNITS)
    assert np.array_equal(one(file, Bands(1, SOFT)), 255 - plain(2.0 * CT - 1024, *SOFT))
    small = dicom(np.array([[0, 255], [10, 20]], np.uint8), PhotometricInterpretation="MONOCHROME1")
    for bands in (None, Bands(1)):
        assert one(small, bands).tolist() == [[255, 0], [245, 235]]


@pytest.mark.parametrize("bands", [None, Bands(1)])
@pytest.mark.parametrize(
    ("function", "low", "high"), [("", 39.5 - 199.5, 39.5 + 199.5), ("LINEAR_EXACT", 40 - 200.0, 40 + 200.0)]
)
def test_without_a_range_the_first_window_of_the_file_counts(
    bands: Bands | None, function: str, low: float, high: float
) -> None:
    window = {"WindowCenter": ["40", "300"], "WindowWidth": ["400", "2000"]}
    file = dicom(CT, **UNITS, **window, **({"VOILUTFunction": function} if function else {}))
    assert np.array_equal(one(file, bands), plain(2.0 * CT - 1024, low, high))


def test_a_window_may_be_written_as_text() -> None:
    samples = np.arange(-200, 300, 10).astype(np.int16)[None]
    facts = dataset(samples)
    facts.add_new("WindowCenter", "LO", "40")
    facts.add_new("WindowWidth", "LO", "400")
    assert np.array_equal(one(written(facts)), plain(samples, 39.5 - 199.5, 39.5 + 199.5))


def test_a_sigmoid_window_is_the_one_of_the_standard() -> None:
    file = dicom(CT, WindowCenter="2000", WindowWidth="800", VOILUTFunction="SIGMOID")
    expected = [[round(255 / (1 + np.exp(-4 * (int(value) - 2000) / 800))) for value in row] for row in CT]
    assert one(file).tolist() == expected


def test_a_window_of_width_1_cuts_at_one_value() -> None:
    file = dicom(np.array([[8, 9, 10, 11]], np.int16), WindowCenter="10", WindowWidth="1")
    assert one(file).tolist() == [[0, 0, 255, 255]]


def test_a_range_comes_before_a_window_even_a_broken_one() -> None:
    for width in ("400", "0"):
        file = dicom(CT, WindowCenter="40", WindowWidth=width, **UNITS)
        assert np.array_equal(one(file, Bands(1, SOFT)), plain(2.0 * CT - 1024, *SOFT))


def test_a_table_of_values_stands_for_a_window() -> None:
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4, 1, 16], [0, 65535, 257 * 51, 257 * 102]
    table["LUTDescriptor"].VR = "US"
    table["LUTData"].VR = "US"
    file = dicom(np.array([[0, 1, 2, 3, 4, 9]], np.uint16), VOILUTSequence=[table])
    assert one(file).tolist() == [[0, 0, 255, 51, 102, 102]]


def test_a_table_of_the_modality_comes_before_the_range() -> None:
    table = Dataset()
    table.LUTDescriptor, table.LUTData, table.ModalityLUTType = [3, 0, 16], [100, 300, 200], "US"
    table["LUTDescriptor"].VR = "US"
    table["LUTData"].VR = "US"
    file = dicom(np.array([[0, 1, 2]], np.uint16), ModalityLUTSequence=[table])
    assert one(file, Bands(1, (100, 300))).tolist() == [[0, 255, 128]]


def test_without_a_window_white_is_the_largest_value_of_the_stored_bits() -> None:
    values = np.array([[0, 1000, 4095]], np.uint16)
    twelve = dicom(values, BitsStored=12, HighBit=11)
    assert one(twelve).tolist() == [[0, 62, 255]]
    signed = dicom(np.array([[-128, 0, 127]], np.int8))
    assert one(signed).tolist() == [[0, 128, 255]]
    falling = dicom(values, BitsStored=12, HighBit=11, RescaleSlope="-1", RescaleIntercept="0")
    assert one(falling).tolist() == [[255, 193, 0]]
    with pytest.raises(WrongBands, match=r"its values are uint16 from 0 to 4095.*set data.value_range="):
        decode(twelve, bands=Bands(1))


def test_colours_stay_and_those_of_ybr_and_palettes_become_rgb() -> None:
    colours = RANDOM.integers(0, 256, (4, 6, 3)).astype(np.uint8)
    file = dicom(colours, SamplesPerPixel=3)
    for bands in (None, Bands(3)):
        assert np.array_equal(decode(file, bands=bands), colours.transpose(2, 0, 1))
    with pytest.raises(WrongBands, match="it has 3 channels"):
        decode(file, bands=Bands(1))
    ybr = np.asarray(Image.fromarray(colours).convert("YCbCr"))
    found = decode(dicom(ybr, SamplesPerPixel=3, PhotometricInterpretation="YBR_FULL"))
    assert abs(found.numpy().astype(int) - colours.transpose(2, 0, 1)).max() <= 3
    palette: dict[str, Any] = {}
    for channel, color in enumerate(("Red", "Green", "Blue")):
        palette[f"{color}PaletteColorLookupTableDescriptor"] = [2, 0, 16]
        palette[f"{color}PaletteColorLookupTableData"] = np.array([channel << 8, 65535], "<u2").tobytes()
    file = dicom(np.array([[0, 1]], np.uint8), PhotometricInterpretation="PALETTE COLOR", **palette)
    assert decode(file).permute(1, 2, 0).tolist() == [[[0, 1, 2], [255, 255, 255]]]


def test_compressed_files_are_decoded_by_what_is_installed() -> None:
    facts = dataset(CT.astype(np.uint16), **UNITS)
    facts.compress(RLELossless)
    assert np.array_equal(one(written(facts), Bands(1, SOFT)), plain(2.0 * CT - 1024, *SOFT))
    gray = np.repeat(np.arange(0, 240, 15, dtype=np.uint8)[:, None], 16, axis=1)
    for syntax, kind, options, most in (
        (JPEGBaseline8Bit, "JPEG", {"quality": 100}, 2),
        (JPEG2000Lossless, "JPEG2000", {"no_jp2": True}, 0),
    ):
        buffer = io.BytesIO()
        Image.fromarray(gray).save(buffer, kind, **options)
        facts = dataset(gray)
        facts.PixelData = encapsulate([buffer.getvalue()])
        facts["PixelData"].is_undefined_length = True
        facts.file_meta.TransferSyntaxUID = syntax
        assert abs(one(written(facts)).astype(int) - gray).max() <= most, kind


def compressed(syntax: str) -> bytes:
    facts = dataset(CT)
    facts.PixelData = encapsulate([b"\xff\xd8\xff\xd9"])
    facts["PixelData"].is_undefined_length = True
    facts.file_meta.TransferSyntaxUID = syntax
    return written(facts)


def without_pixels() -> bytes:
    facts = dataset(CT)
    for name in ("PixelData", "Rows", "Columns", "BitsAllocated"):
        delattr(facts, name)
    facts.Modality = "SR"
    return written(facts)


def secretly_deflated() -> bytes:
    """A deflated file; read as explicit, its head is uncompressed, but pydicom takes it for an implicit one."""
    whole = dicom(CT, DeflatedExplicitVRLittleEndian)
    (num_head,) = struct.unpack("<I", whole[140:144])
    explicit = struct.pack("<2H2sH", 2, 0x10, b"UI", 20) + ExplicitVRLittleEndian.encode() + b"\0"
    implicit = (
        struct.pack("<2HI", 2, 0x10, len(DeflatedExplicitVRLittleEndian)) + DeflatedExplicitVRLittleEndian.encode()
    )
    return whole[:132] + struct.pack("<2HI", 2, 1, len(explicit)) + explicit + implicit + whole[144 + num_head :]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (dicom(CT)[:-20], "a damaged DICOM file: .*less than expected"),
        (dicom(CT)[:200], "a (damaged )?DICOM file"),
        (bytes(128) + b"DICM" + b"\xff" * 200, "no transfer syntax"),
        (compressed(MPEG2MPML), r"MPEG2 Main Profile.*which pydicom does not decode; store it uncompressed"),
        (without_pixels(), r"a DICOM file without pixels \(modality SR\)"),
        (dicom(np.stack([CT, CT])), "of 2 frames; image_folder and file_list make each an image"),
        (dicom(CT, DeflatedExplicitVRLittleEndian), "a deflated DICOM file"),
        (secretly_deflated(), "a deflated DICOM file"),
        (dicom(np.zeros((2, 2002), np.uint8)), "sides of up to 1,000 to 1"),
        (dicom(CT, WindowCenter="0", WindowWidth="0"), "the window LINEAR of width 0; set data.value_range="),
    ],
    ids=["cut", "head", "noise", "syntax", "report", "frames", "deflated", "secretly deflated", "long", "window"],
)
def test_what_cannot_be_decoded_says_why(file: bytes, message: str) -> None:
    with pytest.raises(CorruptImage, match=message):
        decode(file)


@pytest.mark.skipif(find_spec("gdcm") is not None, reason="gdcm decodes it")
def test_a_compression_without_a_decoder_is_named_with_what_brings_one() -> None:
    with pytest.raises(CorruptImage, match=r"JPEG Lossless.*\.4\.70.*gdcm.*pip install 'raysl\[medical\]'"):
        decode(compressed(JPEGLosslessSV1))


def test_a_header_cannot_claim_memory() -> None:
    facts = dataset(CT)
    facts.Rows = facts.Columns = 60_000
    for bands in (None, Bands(1, SOFT)):
        with pytest.raises(CorruptImage, match="an image of 60000 x 60000 pixels"):
            decode(written(facts), bands=bands)


def test_without_pydicom_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = dicom(CT)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    dicom_header._pydicom.cache_clear()
    try:
        with pytest.raises(CorruptImage, match=r"pip install 'raysl\[medical\]'"):
            decode(file)
    finally:
        dicom_header._pydicom.cache_clear()


def test_a_file_without_its_patient_has_the_same_pixels() -> None:
    window = {"WindowCenter": "40", "WindowWidth": "400"}
    for syntax in (ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian):
        file = dicom(CT, syntax, PhotometricInterpretation="MONOCHROME1", **UNITS, **window)
        bare = without_patient(file)
        assert PATIENT.encode() in file
        assert PATIENT.encode() not in bare
        assert "PatientID" not in dcmread(io.BytesIO(bare))
        assert np.array_equal(one(bare), one(file))
