"""Small true DICOM files, written by pydicom."""

import io
from typing import Any

import numpy as np
from pydicom import Dataset, dcmwrite
from pydicom.dataset import FileMetaDataset
from pydicom.uid import (
    CTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    generate_uid,
)

PATIENT = "Doe^Jane"


def dataset(samples: np.ndarray, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> Dataset:
    """Return a dataset of samples [H, W], or [N, H, W] of several frames; [..., 3] with `SamplesPerPixel=3`."""
    facts = Dataset()
    facts.file_meta = FileMetaDataset()
    facts.file_meta.TransferSyntaxUID = syntax
    facts.file_meta.MediaStorageSOPClassUID = facts.SOPClassUID = CTImageStorage
    facts.file_meta.MediaStorageSOPInstanceUID = facts.SOPInstanceUID = generate_uid(entropy_srcs=["raysl"])
    facts.PatientName, facts.PatientID, facts.Modality = PATIENT, "12345", "CT"
    channels = elements.get("SamplesPerPixel", 1)
    sides = samples.shape if channels == 1 else samples.shape[:-1]
    facts.SamplesPerPixel = channels
    facts.PhotometricInterpretation = "MONOCHROME2" if channels == 1 else "RGB"
    if channels > 1:
        facts.PlanarConfiguration = 0
    facts.Rows, facts.Columns = sides[-2:]
    if len(sides) == 3:
        facts.NumberOfFrames = sides[0]
    bits = 8 * samples.dtype.itemsize
    facts.BitsAllocated, facts.BitsStored, facts.HighBit = bits, bits, bits - 1
    facts.PixelRepresentation = int(samples.dtype.kind == "i")
    stored = samples.astype(samples.dtype.newbyteorder(">" if syntax == ExplicitVRBigEndian else "<"))
    content = stored.tobytes()
    facts.add_new("PixelData", "OB" if bits == 8 else "OW", content + b"\0" * (len(content) % 2))
    for name, value in elements.items():
        setattr(facts, name, value)
    return facts


def written(facts: Dataset) -> bytes:
    """Return the file of a dataset, with its preamble."""
    syntax = facts.file_meta.TransferSyntaxUID
    file = io.BytesIO()
    facts.preamble = bytes(128)
    implicit, little = syntax == ImplicitVRLittleEndian, syntax != ExplicitVRBigEndian
    dcmwrite(file, facts, implicit_vr=implicit, little_endian=little, enforce_file_format=True)
    return file.getvalue()


def dicom(samples: np.ndarray, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> bytes:
    """Return a file of samples as `dataset` takes them."""
    return written(dataset(samples, syntax, **elements))
