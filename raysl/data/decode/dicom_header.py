"""The header of a DICOM file, read by pydicom: how it is stored, and the elements that decide its pixels."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

from raysl.data.decode.bands import WrongBands
from raysl.data.decode.pixels import CorruptImage
from raysl.data.decode.quiet import quiet_module
from raysl.errors import ConfigError, RunFailed

if TYPE_CHECKING:
    from pydicom import Dataset

INSTALL = "DICOM files are read by pydicom: pip install 'raysl[medical]'"
_PREAMBLE, _MARK = 128, b"DICM"
_HEAD = 0x0002  # the group of the elements that say how a file is stored
_DEFLATED = "1.2.840.10008.1.2.1.99"
_KEPT = (
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "Rows", "Columns"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *(f"{color}PaletteColorLookupTableDescriptor" for color in ("Red", "Green", "Blue")),
    *(f"{color}PaletteColorLookupTableData" for color in ("Red", "Green", "Blue")),
    *(f"Segmented{color}PaletteColorLookupTableData" for color in ("Red", "Green", "Blue")),
)
"""Elements that decide the pixels."""
_GROUPS = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
"""Functional groups of enhanced files that hold such elements, for all frames or for each (DICOM PS3.3, C.7.6.16)."""


def is_dicom(data: bytes) -> bool:
    """Whether a file is a DICOM file with its preamble, by its first bytes."""
    return data[_PREAMBLE : _PREAMBLE + 4] == _MARK


def read_header(file: BinaryIO, stop_before_pixels: bool = True) -> "Dataset":
    """Read a file up to its pixels, or all of it; the file stands at the element of the pixels then.

    Raises:
        CorruptImage: if pydicom is missing, or the file is damaged or deflated as a whole.
    """
    pydicom = _pydicom()
    if pydicom is None:
        raise WrongBands(INSTALL)
    quiet_module("pydicom")
    with parsing():
        file.seek(0)
        syntax = _transfer_syntax(file)
        if not syntax:
            raise CorruptImage("a DICOM file that does not say how it is stored (no transfer syntax)")
        # inflating the whole file would take memory without a bound
        if syntax == _DEFLATED:
            raise CorruptImage("a deflated DICOM file, which raysl does not read; store it uncompressed")
        file.seek(0)
        dataset: Dataset = pydicom.dcmread(file, stop_before_pixels=stop_before_pixels)
        return dataset


def frames_of(dataset: "Dataset") -> int:
    """Return the number of frames that a header claims, 1 where it says none."""
    return max(1, int(dataset.get("NumberOfFrames") or 1))


def has_pixels(dataset: "Dataset") -> bool:
    """Whether a header, or a whole file, is that of an image."""
    return "Rows" in dataset and "Columns" in dataset and "BitsAllocated" in dataset


def undecodable(dataset: "Dataset") -> str:
    """Return the name of a file's compression and how to get it decoded; empty if a decoder is installed."""
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    syntax = UID(str(dataset.file_meta.get("TransferSyntaxUID", "")))
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        return f"{syntax.name} ({syntax}), which pydicom does not decode; store it uncompressed"
    if decoder.is_available:
        return ""
    needed = ", or ".join(each.partition(" requires ")[2] for each in decoder.missing_dependencies)
    return (
        f"{syntax.name} ({syntax}), which pydicom decodes with {needed}; pip install 'raysl[medical]' brings gdcm, or "
        "store it uncompressed"
    )


def pixel_facts(dataset: "Dataset", frame: int) -> "Dataset":
    """Return the elements that decide the pixels of a frame, with those of its functional groups, and no others.

    So names, dates and identifiers of patients are left out.

    Args:
        frame: number of the frame, from 0.
    """
    from pydicom import Dataset

    facts = Dataset()
    groups = [
        *_items(dataset, "SharedFunctionalGroupsSequence", 0),
        *_items(dataset, "PerFrameFunctionalGroupsSequence", frame),
    ]
    inner = [item for group in groups for name in _GROUPS for item in _items(group, name, 0)]
    # those of a frame come last, and count
    for origin in (dataset, *inner):
        for name in _KEPT:
            if name in origin:
                facts.add(origin[name])
    if "SamplesPerPixel" not in facts:
        facts.SamplesPerPixel = 1
    # tables of values are read in the order of bytes that it names
    facts.file_meta = dataset.file_meta
    return facts


def without_patient(data: bytes) -> bytes:
    """Return a DICOM file of one frame with only the elements that decide its pixels."""
    dataset = read_header(io.BytesIO(data), stop_before_pixels=False)
    with parsing():
        facts = pixel_facts(dataset, 0)
        for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData"):
            if name in dataset:
                facts.add(dataset[name])
        return written(facts, str(dataset.file_meta.TransferSyntaxUID))


def written(facts: "Dataset", syntax: str) -> bytes:
    """Return these elements as a file that names its transfer syntax, and nothing else of its origin."""
    from pydicom import dcmwrite
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import UID, ExplicitVRBigEndian, ImplicitVRLittleEndian

    facts.file_meta = FileMetaDataset()
    facts.file_meta.TransferSyntaxUID = UID(syntax)
    facts.preamble = bytes(_PREAMBLE)
    file = io.BytesIO()
    is_little = syntax != ExplicitVRBigEndian
    dcmwrite(file, facts, implicit_vr=syntax == ImplicitVRLittleEndian, little_endian=is_little)
    return file.getvalue()


def _items(dataset: "Dataset", name: str, number: int) -> list["Dataset"]:
    sequence = dataset.get(name)
    return [sequence[number]] if sequence is not None and number < len(sequence) else []


def _transfer_syntax(file: BinaryIO) -> str:
    """Return the transfer syntax that the head of a file names (DICOM PS3.10, 7.1); empty if it names none."""
    from pydicom.filereader import read_dataset

    if not is_dicom(file.read(_PREAMBLE + 4)):
        raise CorruptImage("not a DICOM file: it has no DICM behind its preamble")
    # as dcmread reads it, which may take damaged elements for implicit ones; the head ends at another group
    head = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag >> 16 != _HEAD)
    return str(head.get("TransferSyntaxUID") or "")


def describe_modality(dataset: "Dataset") -> str:
    """Return the modality that a header names, as a remark; empty without one."""
    modality = str(dataset.get("Modality") or "")
    return f" (modality {modality})" if modality else ""


@contextmanager
def parsing() -> Iterator[None]:
    """Turn what pydicom and its decoders raise for a damaged file into a CorruptImage.

    Elements are parsed when they are looked at, so this belongs around all that looks at one.
    """
    try:
        yield
    except (CorruptImage, ConfigError, RunFailed, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # whatever a file holds
        raise CorruptImage(f"a damaged DICOM file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


@cache
def _pydicom() -> Any:
    """Return the library with its warnings silenced, since whatever matters is raised; None where it is absent."""
    try:
        import pydicom
    except ImportError:
        return None
    from pydicom import config

    config.settings.reading_validation_mode = config.IGNORE
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    return pydicom
