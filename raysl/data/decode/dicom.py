"""DICOM files through pydicom: stored values become those of the modality, then 8 bits by a window."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysl.data.decode.bands import Bands
from raysl.data.decode.dicom_header import (
    describe_modality,
    frames_of,
    has_pixels,
    parsing,
    pixel_facts,
    read_header,
    undecodable,
)
from raysl.data.decode.pixels import CorruptImage

if TYPE_CHECKING:
    from pydicom import Dataset


@dataclass(frozen=True)
class Picture:
    """One frame of a DICOM file before it becomes 8 bits.

    Args:
        samples: values of the modality, such as Hounsfield units, [H, W]; or colours [H, W, 3].
        window: maps samples to shares of white by the window or table of the file; None: it has none, or a range of
            the settings counts.
        whole: the values that the stored bits allow, lowest and highest.
        is_inverted: whether low values are bright (MONOCHROME1).
    """

    samples: np.ndarray
    window: Callable[[np.ndarray], np.ndarray] | None
    whole: tuple[float, float]
    is_inverted: bool

    def to_uint8(self, bands: Bands | None) -> np.ndarray:
        """Return pixels uint8 [H, W] or [H, W, C].

        Grey values become 8 bits by `bands.value_range`, else by the window of the file, else, where `bands` is None,
        by the values that its bits allow; values of 8 bits may stay as they are.

        Raises:
            WrongBands: if there are other channels than `bands.num`, or these values need a range.
        """
        samples = self.samples
        if bands is None or (bands.value_range is None and self.window is not None):
            samples = self._windowed()
        pixels = samples if bands is None else bands.to_uint8(samples)
        return 255 - pixels if self.is_inverted else pixels

    def _windowed(self) -> np.ndarray:
        shares = self.window or _linear(*self.whole)
        if self.window is None and self.samples.dtype == np.uint8 and self.whole == (0.0, 255.0):
            return self.samples
        pixels: np.ndarray = np.rint(255.0 * shares(self.samples).clip(0.0, 1.0)).astype(np.uint8)
        return pixels


def read_dicom(data: bytes, bands: Bands | None, check_size: Callable[[int, int, int], None]) -> np.ndarray:
    """Decode a DICOM file of one frame to pixels uint8 [H, W] or [H, W, C], see `Picture.to_uint8`.

    Args:
        bands: number of channels and range of values; None: whatever the file has.
        check_size: takes height, width and bytes a pixel; raises CorruptImage if decoding would take too much memory.

    Raises:
        CorruptImage: if pydicom is missing, the file is damaged or has several frames or no pixels, or no decoder that
            is installed reads it.
    """
    dataset = read_header(io.BytesIO(data), stop_before_pixels=False)
    with parsing():
        if not has_pixels(dataset):
            raise CorruptImage(f"a DICOM file without pixels{describe_modality(dataset)}")
        if (num := frames_of(dataset)) > 1:
            raise CorruptImage(
                f"a DICOM file of {num:,} frames; image_folder and file_list make each an image where the name of the "
                "file ends in .dcm, and raysl ingest stores them so"
            )
        facts = pixel_facts(dataset, 0)
        # values as they are stored, those of the modality and shares of white, both float64, and pixels
        num_bytes = int(facts.SamplesPerPixel) * (int(facts.BitsAllocated) // 8 + 17)
        check_size(int(facts.Rows), int(facts.Columns), num_bytes)
        return _to_uint8(facts, _decode(dataset), bands)


def _to_uint8(facts: "Dataset", stored: np.ndarray, bands: Bands | None) -> np.ndarray:
    """Return pixels of decoded values [H, W] or [H, W, C]; in a table where there are more pixels than values."""
    needs_window = bands is None or bands.value_range is None
    if stored.ndim == 2 and stored.dtype.kind in "iu":
        low, high = int(stored.min()), int(stored.max())
        if high - low < stored.size:
            levels = np.arange(low, high + 1).astype(stored.dtype)[None]  # [1, L]
            table = _picture(facts, levels, needs_window).to_uint8(bands)[0]  # [L] or [L, C]
            pixels: np.ndarray = table[stored.astype(np.int64) - low]
            return pixels
    return _picture(facts, stored, needs_window).to_uint8(bands)


def dicom_size(data: bytes) -> tuple[int, int]:
    """Return height and width from the header.

    Raises:
        CorruptImage: if it cannot be read.
    """
    dataset = read_header(io.BytesIO(data))
    with parsing():
        if not has_pixels(dataset):
            raise CorruptImage(f"a DICOM file without pixels{describe_modality(dataset)}")
        return int(dataset.Rows), int(dataset.Columns)


def _picture(facts: "Dataset", stored: np.ndarray, needs_window: bool) -> Picture:
    """Return the picture of decoded values [H, W] or [H, W, C]."""
    from pydicom.pixels import apply_color_lut, apply_modality_lut

    kind = str(facts.get("PhotometricInterpretation", "MONOCHROME2"))
    if kind == "PALETTE COLOR":
        stored = apply_color_lut(stored, facts)
    if stored.ndim == 3:
        if stored.shape[2] != 3:
            raise CorruptImage(f"a DICOM file of {stored.shape[2]} values a pixel; raysl reads 1 and 3")
        bits = 8 * stored.dtype.itemsize if kind == "PALETTE COLOR" else int(facts.BitsStored)
        return Picture(stored, None, (0.0, 2.0**bits - 1), False)
    is_inverted = kind == "MONOCHROME1"
    window = _window_of(facts) if needs_window else None
    if stored.dtype.kind == "f":
        if not np.isfinite(stored).all():
            raise CorruptImage("some values are not finite; store numbers in their place, such as 0")
        return Picture(stored, window, (0.0, 1.0), is_inverted)
    bits, is_signed = int(facts.BitsStored), bool(facts.get("PixelRepresentation", 0))
    whole = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if is_signed else (0.0, 2.0**bits - 1)
    if "ModalityLUTSequence" in facts:
        depth = int(facts.ModalityLUTSequence[0].LUTDescriptor[2])
        samples, whole = apply_modality_lut(stored, facts), (0.0, 2.0**depth - 1)
        return Picture(samples, window, whole, is_inverted)
    slope, intercept = _number(facts, "RescaleSlope", 1.0), _number(facts, "RescaleIntercept", 0.0)
    if (slope, intercept) == (1.0, 0.0):
        return Picture(stored, window, whole, is_inverted)
    units: np.ndarray = stored.astype(np.float64) * slope + intercept
    ends = sorted(end * slope + intercept for end in whole)
    return Picture(units, window, (ends[0], ends[1]), is_inverted)


def _window_of(facts: "Dataset") -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the first window of a file, else its table of values, as shares of white; None without both.

    Formulas: DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3.
    """
    if facts.get("WindowCenter") is not None and facts.get("WindowWidth") is not None:
        center, width = _number(facts, "WindowCenter", 0.0), _number(facts, "WindowWidth", 0.0)
        function = str(facts.get("VOILUTFunction") or "LINEAR")
        if function == "SIGMOID" and width > 0:
            return lambda samples: 1 / (1 + np.exp(-4 * (samples.astype(np.float64) - center) / width))
        if function == "LINEAR_EXACT" and width > 0:
            return _linear(center - width / 2, center + width / 2)
        if function == "LINEAR" and width >= 1:
            return _linear(center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2)
        raise CorruptImage(f"a DICOM file with the window {function} of width {width:g}; set data.value_range=")
    if "VOILUTSequence" in facts and facts.VOILUTSequence:
        from pydicom.pixels import apply_voi

        most = 2.0 ** int(facts.VOILUTSequence[0].LUTDescriptor[2]) - 1
        return lambda samples: apply_voi(samples.astype(np.int64), facts) / most
    return None


def _linear(low: float, high: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map from [low, high] to [0, 1]; where both are equal, values above are 1."""
    if low >= high:
        return lambda samples: (samples > low).astype(np.float64)
    return lambda samples: (samples.astype(np.float64) - low) / (high - low)


def _decode(dataset: "Dataset") -> np.ndarray:
    if problem := undecodable(dataset):
        raise CorruptImage(f"a DICOM file compressed as {problem}")
    from pydicom.pixels import pixel_array

    # raw=False turns YBR colours to RGB
    pixels = pixel_array(dataset, index=0)
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _number(facts: "Dataset", name: str, default: float) -> float:
    """Return a number, the first one of several."""
    from pydicom.multival import MultiValue

    value = facts.get(name)
    if value is None or value == "":
        return default
    # text is a number too: a file may give an element another type than the standard does
    number = float(value[0] if isinstance(value, MultiValue) else value)
    if not math.isfinite(number):
        raise CorruptImage(f"a DICOM file whose {name} is {number}")
    return number
