"""Small true NIfTI files, written by nibabel."""

import gzip

import nibabel
import numpy as np

TEXT = "Doe^Jane"


def nifti(values: np.ndarray, slope: float = 1.0, inter: float = 0.0, version: int = 1, order: str = "<") -> bytes:
    """Return a file of stored values [X, Y, Z, ...], which has a text that names a patient."""
    header = (nibabel.Nifti1Header if version == 1 else nibabel.Nifti2Header)(endianness=order)
    header.set_data_dtype(values.dtype)
    header.set_data_shape(values.shape)
    header["scl_slope"], header["scl_inter"] = slope, inter
    header["descrip"] = TEXT
    header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", TEXT.encode()))
    first = header.single_vox_offset + sum(extension.get_sizeondisk() for extension in header.extensions)
    header["vox_offset"] = first
    content = bytes(header.binaryblock) + b"\1\0\0\0"
    content += b"".join(_written(extension, order) for extension in header.extensions)
    stored = values.astype(values.dtype.newbyteorder(order))
    return content + bytes(first - len(content)) + stored.tobytes(order="F")


def nifti_gz(values: np.ndarray, slope: float = 1.0, inter: float = 0.0) -> bytes:
    """Return the same file compressed."""
    return gzip.compress(nifti(values, slope, inter), mtime=0)


def _written(extension: nibabel.nifti1.Nifti1Extension, order: str) -> bytes:
    size, code = extension.get_sizeondisk(), extension.get_code()
    endian = "little" if order == "<" else "big"
    head = size.to_bytes(4, endian) + code.to_bytes(4, endian)
    return (head + TEXT.encode()).ljust(size, b"\0")
