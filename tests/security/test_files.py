"""Files that are not what they seem: links, devices, files of any size, folders under a million names."""

import io
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import fs

from raysl.config.dump import dump
from raysl.config.load import load_config, load_dumped
from raysl.data.decode.decode import CorruptImage, decode, image_size
from raysl.data.decode.images import read_images
from raysl.data.limits import MAX_PIXELS, max_pixels
from raysl.data.source import Missing
from raysl.data.sources.image_files import read_if_there
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.listing import list_files
from raysl.errors import ConfigError, RunInUse
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.storage.owner import is_owned, own_local

LOCAL = fs.LocalFileSystem()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "run"
    target.write_text("keep me")
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    with pytest.raises(ConfigError), own_local(Folder(str(folder))):
        pass
    with pytest.raises(ConfigError):
        is_owned(Folder(str(folder)))
    assert target.read_text() == "keep me"


def test_a_lock_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ConfigError, match="not a regular file"), own_local(Folder(str(tmp_path))):
        pass
    with pytest.raises(ConfigError, match="not a regular file"):
        is_owned(Folder(str(tmp_path)))


@pytest.mark.thorough
def test_a_look_writes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    assert not folder.is_in_use()
    assert list(tmp_path.iterdir()) == []
    with own_local(Folder(str(tmp_path))):
        held = (tmp_path / ".lock").read_text()
        assert folder.is_in_use()
        assert (tmp_path / ".lock").read_text() == held
        with pytest.raises(RunInUse), own_local(Folder(str(tmp_path))):
            pass
    assert not folder.is_in_use()
    assert (tmp_path / ".lock").read_text() == held


def test_a_fifo_or_a_device_in_place_of_an_image_is_a_missing_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    for path in (str(tmp_path / "a.png"), "/dev/zero"):
        missing = read_if_there(LOCAL, path)
        assert isinstance(missing, Missing)
        assert "is not a regular file" in missing.reason


def test_a_sparse_file_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = tmp_path / "a.png"
    with sparse.open("wb") as file:
        file.truncate(8 << 30)
    missing = read_if_there(LOCAL, str(sparse))
    assert isinstance(missing, Missing)
    assert missing.reason == "more than 1,073,741,824 bytes"
    small = tmp_path / "b.png"
    small.write_bytes(b"x" * 100)
    assert read_if_there(LOCAL, str(small)) == b"x" * 100
    monkeypatch.setenv("RAYSL_MAX_FILE_BYTES", "99")
    assert read_if_there(LOCAL, str(small)) == Missing("more than 99 bytes")
    monkeypatch.setenv("RAYSL_MAX_FILE_BYTES", "much")
    with pytest.raises(ConfigError, match="RAYSL_MAX_FILE_BYTES='much' is not a positive integer"):
        read_if_there(LOCAL, str(small))


def gif(width: int, height: int) -> bytes:
    """A GIF of one small frame that claims a large screen."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).convert("P").save(stream, "GIF")
    data = bytearray(stream.getvalue())
    data[6:10] = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    return bytes(data)


def test_a_small_gif_that_claims_a_large_screen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gif(10_000, 10_000)
    assert len(data) < 1000
    for read in (decode, image_size):
        with pytest.raises(CorruptImage, match=r"raysl reads 1 to 35,791,394 pixels of a palette"):
            read(data)
    assert image_size(gif(5_000, 5_000)) == (5_000, 5_000)
    monkeypatch.setenv("RAYSL_MAX_PIXELS", "1000")
    with pytest.raises(CorruptImage, match="raysl reads 1 to 200 pixels of a palette"):
        decode(gif(20, 20))


def test_links_that_double_at_each_level_end_the_listing(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    for level in range(1, 23):
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(tmp_path / str(level))
        folder = tmp_path / str(level)
    folder.mkdir()
    start = time.perf_counter()
    with pytest.raises(ConfigError, match="under more than 1,000 names"):
        list_files(str(tmp_path / "0"))
    assert time.perf_counter() - start < 5


def test_limits_of_the_settings_hold_where_images_are_read_and_decoded(tmp_path: Path) -> None:
    for name, side in (("a", 4), ("b", 40)):
        path = tmp_path / "train" / name / "1.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (side, side)).save(path)

    def corrupt(**settings: int) -> list[str]:
        split = ImageFolder(ImageFolder.Config(path=str(tmp_path), **settings)).required("train")
        return [str(image) for image in read_images(split, np.arange(2)).corrupt]

    size = (tmp_path / "train" / "b" / "1.png").stat().st_size
    assert corrupt() == []
    assert "40 x 40 pixels; raysl reads 1 to 1,599 pixels" in corrupt(max_pixels=1599)[0]
    assert corrupt(max_pixels=1600) == []
    assert len(corrupt(max_file_bytes=size - 1)) == 1
    assert corrupt(max_file_bytes=size) == []
    assert max_pixels() == MAX_PIXELS, "outside nothing has changed"


@pytest.mark.thorough
def test_a_stored_setting_lifts_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config("quickstart", ["data.max_pixels=2000000000", "data.max_file_bytes=2000000000"])
    assert load_dumped(dump(config), trust_code=True).data.max_pixels == 2_000_000_000
    data = load_dumped(dump(config)).data
    assert (data.max_pixels, data.max_file_bytes) == (None, None)
    assert "lifts a limit" in caplog.text
