"""simplejpeg decodes JPEG files where it has the pixels of torchvision, and nothing else."""

import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from raysl.data.decode import decode as module
from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.decode.fast_jpeg import fast_decoder


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    fast_decoder.cache_clear()
    yield
    fast_decoder.cache_clear()


def picture(mode: str = "RGB", **options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 201, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=92, **options)
    return file.getvalue()


def reference(data: Tensor) -> Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data.numpy().tobytes())))).permute(2, 0, 1)


def install(monkeypatch: pytest.MonkeyPatch, offset: int) -> list[bytes]:
    """Put a decoder in the place of simplejpeg whose pixels are brighter by `offset`, and record what it gets."""
    seen = []

    def decode_jpeg(data: bytes, colorspace: str) -> np.ndarray:
        seen.append(data)
        return np.array(Image.open(io.BytesIO(data)).convert(colorspace)) + np.uint8(offset)

    monkeypatch.setattr("raysl.data.decode.fast_jpeg.find_spec", lambda name: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "simplejpeg", SimpleNamespace(decode_jpeg=decode_jpeg))
    return seen


def test_a_decoder_with_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, offset=0)
    assert fast_decoder(reference)(picture()) is not None
    fast_decoder.cache_clear()
    install(monkeypatch, offset=1)
    assert fast_decoder(reference)(picture()) is None


def test_without_simplejpeg_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.data.decode.fast_jpeg.find_spec", lambda name: None)
    assert fast_decoder(reference)(picture()) is None


def test_only_usual_files_that_are_not_small_are_decoded_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = install(monkeypatch, offset=0)
    large, grey, inverted = picture(), picture("L"), picture("CMYK")
    unusual = large.replace(b"\x03\x01\x22\x00\x02\x11\x01", b"\x03\x01\x12\x00\x02\x11\x01")
    assert unusual != large
    small = picture(subsampling=2)[: module.FAST_BYTES - 1]
    assert min(map(len, (large, grey, inverted))) >= module.FAST_BYTES
    for data in (large, grey, inverted, unusual):
        decode(data)
    with pytest.raises(CorruptImage):
        decode(small)
    assert large in seen
    assert not {grey, inverted, unusual, small} & set(seen)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_are_the_same_with_and_without(
    subsampling: int, progressive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    exif = Image.Exif()
    exif[274] = 6
    data = picture(subsampling=subsampling, progressive=progressive, exif=exif)
    fast = fast_decoder(module._torchvision())(data)
    assert fast is not None
    damaged = data[: len(data) // 2]
    cases = (data, damaged + b"\xff\xd9", data + b"after the end")
    found = [decode(case) for case in cases]
    with pytest.raises(CorruptImage):
        decode(damaged)
    monkeypatch.setattr(module, "FAST_BYTES", 1 << 30)
    assert all(torch.equal(pixels, decode(case)) for pixels, case in zip(found, cases, strict=True))
    assert torch.equal(fast, module._torchvision()(torch.frombuffer(bytearray(data), dtype=torch.uint8)))
