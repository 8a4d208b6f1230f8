"""What tells that images or labels have changed where the fingerprint, which gives the order of samples, does not."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from raysl.data.given import GivenImages
from raysl.data.ingest.ingest import ingest_source
from raysl.data.source import Split
from raysl.data.sources import versions
from raysl.data.sources.concat import Concat
from raysl.data.sources.file_list import FileList
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.webdataset import WebDataset
from raysl.data.split import with_labels
from tests.data.samples import all_rows, png, sent
from tests.data.sources.test_webdataset import write as write_tar

Seen = tuple[str, dict[str, str], str]


def seen(split: Split) -> Seen:
    return split.fingerprint, dict(sent(split).content()), sent(split).written()


def table(path: Path, labels: list[int], shades: tuple[int, ...] = (0, 1, 2)) -> None:
    columns = {"image": [png(shade) for shade in shades], "label": labels}
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)


def parquet(path: Path, **settings: Any) -> Split:
    return Parquet(Parquet.Config(path=str(path), **settings)).required("train")


def folders(path: Path) -> Split:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "train" / name).write_bytes(png(len(name)))
    return folder_at(path)


def folder_at(path: Path) -> Split:
    return ImageFolder(ImageFolder.Config(path=str(path))).required("train")


def list_at(path: Path) -> Split:
    (path / "list.txt").write_text("train/cat/1.png 0\ntrain/dog/1.png 1\n")
    return FileList(FileList.Config(train=str(path / "list.txt"))).required("train")


def tars_at(path: Path) -> Split:
    return WebDataset(WebDataset.Config(path=str(path))).required("train")


def later(file: Path) -> None:
    """Written a second later than it was."""
    written = file.stat().st_mtime_ns + 10**9
    os.utime(file, ns=(written, written))


def test_labels_of_a_parquet_file_are_in_the_content_and_not_in_the_order_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    table(path, [0, 1, 2])
    before = seen(parquet(tmp_path))
    written = path.stat().st_mtime_ns
    table(path, [1, 2, 0])
    os.utime(path, ns=(written, written))
    after = seen(parquet(tmp_path))
    assert after[0] == before[0], "stored runs keep their order"
    assert after[1]["labels"] != before[1]["labels"]
    assert {**after[1], "labels": ""} == {**before[1], "labels": ""}
    assert after[2] == before[2]
    assert "labels" not in with_labels(parquet(tmp_path), "zero").content(), "labels that are not used do not count"


@pytest.mark.parametrize("labels", [["a", "b", "a"], [[1, 0], [0, 1], [0, -1]]])
def test_labels_of_every_kind_are_in_the_content(tmp_path: Path, labels: list[Any]) -> None:
    digests = []
    for given in (labels, labels, [labels[1], labels[0], labels[2]]):
        table(tmp_path / "train.parquet", given)
        digests.append(parquet(tmp_path).content()["labels"])
    assert digests[0] == digests[1] != digests[2]


def test_an_image_of_the_same_size_in_a_parquet_file_is_another_version(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    table(path, [0, 1, 2], (1, 2, 3))
    before, size, split = seen(parquet(tmp_path)), path.stat().st_size, parquet(tmp_path)
    rows = all_rows(split)
    written = path.stat().st_mtime_ns
    table(path, [0, 1, 2], (1, 2, 4))
    os.utime(path, ns=(written, written + 10**9))
    after = seen(parquet(tmp_path))
    assert path.stat().st_size == size
    assert after[:2] == before[:2]
    assert after[2] != before[2] != ""
    assert all_rows(parquet(tmp_path)).images == [*rows.images[:2], png(4)], "rows of the old file are not kept"


def test_a_copy_has_the_same_content_and_order_and_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    table(tmp_path / "a" / "train.parquet", [0, 1, 2])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    later(tmp_path / "b" / "train.parquet")
    first, copy = seen(parquet(tmp_path / "a")), seen(parquet(tmp_path / "b"))
    assert copy[:2] == first[:2]
    assert copy[2] != first[2]


def test_files_of_an_ingest_count_by_their_hashes_until_they_are_written_after_the_manifest(tmp_path: Path) -> None:
    folders(tmp_path / "images")
    ingest_source(ImageFolder.Config(path=str(tmp_path / "images")), str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("train*.parquet")
    before = seen(parquet(tmp_path / "out"))
    assert before[2] == ""
    assert before[1].keys() == {"files", "labels"}
    os.utime(file, ns=(1, 1))
    assert seen(parquet(tmp_path / "out")) == before, "an older time is that of a copy"
    later(tmp_path / "out" / "manifest.json")
    os.utime(file, ns=(2, (tmp_path / "out" / "manifest.json").stat().st_mtime_ns + 1))
    after = seen(parquet(tmp_path / "out"))
    assert after[:2] == before[:2]
    assert after[2] != ""


def test_fingerprints_are_those_of_stored_runs(tmp_path: Path) -> None:
    table(tmp_path / "train.parquet", [0, 1, 2])
    group = pq.ParquetFile(tmp_path / "train.parquet").metadata.row_group(0)
    line = f"train.parquet [(3, {group.total_byte_size})]\n"
    assert parquet(tmp_path).fingerprint == hashlib.sha256(line.encode()).hexdigest()[:16]
    images = folders(tmp_path / "f")
    names = "\n".join(f"{name} {len(png(len(name)))}" for name in ("cat/1.png", "cat/2.png", "dog/1.png"))
    assert images.fingerprint == hashlib.sha256(names.encode()).hexdigest()[:16]


@pytest.mark.parametrize("read", [folder_at, list_at])
def test_images_of_equal_size_that_are_replaced_or_swapped_are_another_version(
    tmp_path: Path, read: Callable[[Path], Split]
) -> None:
    folders(tmp_path)
    cat, dog = (tmp_path / "train" / name / "1.png" for name in ("cat", "dog"))
    later(dog)
    before = seen(read(tmp_path))
    assert before[2] != ""
    cat.rename(tmp_path / "aside")
    dog.rename(cat)
    (tmp_path / "aside").rename(dog)
    swapped = seen(read(tmp_path))
    assert swapped[:2] == before[:2]
    assert swapped[2] != before[2]
    cat.write_bytes(png(200))
    assert seen(read(tmp_path))[2] not in (swapped[2], before[2])


def test_a_start_does_not_ask_for_each_file_of_a_list(tmp_path: Path) -> None:
    folders(tmp_path)
    split = list_at(tmp_path)
    assert split.written(ask=False) == ""
    assert split.written() == split.written(ask=False) != ""


def test_classes_that_number_the_images_are_in_the_content(tmp_path: Path) -> None:
    folders(tmp_path)
    held_out = tmp_path / "val" / "dog" / "1.png"
    held_out.parent.mkdir(parents=True)
    held_out.write_bytes(png(5))

    def test() -> Split:
        return ImageFolder(ImageFolder.Config(path=str(tmp_path))).required("test")

    before = seen(test())
    (tmp_path / "train" / "bee").mkdir()
    (tmp_path / "train" / "bee" / "1.png").write_bytes(png(5))
    after = seen(test())
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1], "a dog is class 2 now"


def test_a_tar_that_is_written_again_is_another_version(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"1"})
    before = seen(tars_at(tmp_path))
    write_tar(tmp_path / "a.tar", {"1.png": png(2), "1.cls": b"1"})
    later(tmp_path / "a.tar")
    after = seen(tars_at(tmp_path))
    assert after[:2] == before[:2]
    assert after[2] != before[2]


def test_sources_inside_a_source_count(tmp_path: Path) -> None:
    folders(tmp_path / "a")
    (tmp_path / "b").mkdir()
    table(tmp_path / "b" / "train.parquet", [0, 1, 2])

    def both() -> Split:
        sources = {
            "a": ImageFolder.Config(path=str(tmp_path / "a")),
            "b": Parquet.Config(path=str(tmp_path / "b"), limit=2),
        }
        return Concat(Concat.Config(sources=sources)).required("train")

    before = seen(both())
    assert before[1].keys() == {"labels of source 1", "sizes of source 2", "labels of source 2"}
    later(tmp_path / "a" / "train" / "cat" / "1.png")
    touched = seen(both())
    assert touched[:2] == before[:2]
    assert touched[2] != before[2]
    table(tmp_path / "b" / "train.parquet", [0, 2, 1])
    assert seen(both())[1]["labels of source 2"] != before[1]["labels of source 2"]


def test_images_in_memory_are_told_apart_by_what_is_in_them() -> None:
    labels = np.zeros(2, np.int64)
    pixels = [np.full((4, 4, 3), shade, np.uint8) for shade in range(3)]
    one, same, other = (GivenImages(images, labels) for images in (pixels[:2], pixels[:2], pixels[1:]))
    assert one.content() == same.content() != other.content()


def test_a_storage_without_times_is_asked_for_its_tags() -> None:
    memory = fsspec.filesystem("memory")
    try:
        for name in ("train/a/1.png", "train/b/1.png"):
            memory.pipe(f"/tagged/{name}", png(1))
        before = seen(ImageFolder(_tagged()).required("train"))
        assert before[2] != ""
        assert seen(ImageFolder(_tagged()).required("train")) == before
        memory.pipe("/tagged/train/a/1.png", png(3))
        assert seen(ImageFolder(_tagged()).required("train"))[2] != before[2]
    finally:
        memory.rm("/tagged", recursive=True)


def test_a_remote_storage_is_not_asked_for_each_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(png(1))
    monkeypatch.setattr(versions, "MOST_ASKED", 1)
    remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert versions.read_versions([(remote, "1.png")]) == [str((tmp_path / "1.png").stat().st_mtime_ns)]
    assert versions.read_versions([(remote, "1.png"), (remote, "2.png")]) == [None, None]
    local = [(fs.LocalFileSystem(), str(tmp_path / name)) for name in ("1.png", "2.png")]
    assert None not in versions.read_versions(local)


def _tagged() -> ImageFolder.Config:
    return ImageFolder.Config(path="memory://tagged")
