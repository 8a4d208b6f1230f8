import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from raysl.config.schema import DataConfig
from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.decode.images import read_images
from raysl.data.ingest import parts
from raysl.data.ingest.ingest import LEFT_BEHIND_S, ingest_source, verify
from raysl.data.ingest.parts import SplitPart, cut_parts, in_process
from raysl.data.ingest.shard import Layout, encode_for_storage, shrink, write_shard
from raysl.data.source import Rows, Source, Split, runs
from raysl.data.sources.concat import Concat
from raysl.data.sources.digits import Digits
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.parquet_columns import CLASSES_KEY
from raysl.errors import ConfigError, RunFailed
from raysl.hashing import Int64s
from tests.console import Console

SMALL = Layout(rows_per_file=4, rows_per_group=2, seed=None)
RANDOM = replace(SMALL, seed=0)


def file_of(shade: int, kind: str = "PNG", size: tuple[int, int] = (16, 12)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 99, 255 - shade)).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> DataConfig:
    """Seven training images, PNG and JPEG, and two held-out ones, of the classes cat and dog; train 3 is broken."""
    root = tmp_path / "images"
    names = ["train/cat/0.png", "train/cat/1.jpg", "train/cat/2.png", "train/cat/3.png", "train/dog/4.jpg"]
    names += ["train/dog/5.png", "train/dog/6.png", "val/cat/7.png", "val/dog/8.jpg"]
    for shade, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(file_of(shade, "JPEG" if name.endswith("jpg") else "PNG"))
    (root / "train/cat/3.png").write_bytes(file_of(3)[:40])
    return ImageFolder.Config(path=str(root))


def everything(split: Split) -> Rows:
    return split.read(np.arange(split.num_samples))


def stored(uri: object, name: str = "train") -> Split:
    return Parquet(Parquet.Config(path=str(uri))).required(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# what is stored


def test_pixels_read_back_equal_with_their_labels_and_classes(tmp_path: Path) -> None:
    done = ingest_source(Digits.Config(limit=30), str(tmp_path), Layout(rows_per_file=13, rows_per_group=5, seed=None))
    assert (done.rows, done.num_files, done.num_corrupt, done.was_done) == ({"train": 30, "test": 30}, 6, 0, False)
    for name in ("train", "test"):
        source, copy = Digits(Digits.Config(limit=30)).required(name), stored(tmp_path, name)
        assert copy.classes == source.classes
        assert copy.unit_sizes.tolist() == [5, 5, 3, 5, 5, 3, 4]
        before, after = everything(source), everything(copy)
        assert np.array_equal(before.labels, after.labels)
        assert all(torch.equal(decode(old), decode(new)) for old, new in zip(before.images, after.images, strict=True))


def test_files_are_stored_byte_by_byte_and_broken_ones_are_listed(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = ingest_source(images, str(out), SMALL)
    assert (done.rows, done.num_corrupt) == ({"train": 6, "test": 2}, 1)
    before, after = everything(ImageFolder(images).required("train")), everything(stored(out))
    assert after.images == [image for place, image in enumerate(before.images) if place != 3]
    assert after.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert stored(out).classes == stored(out, "test").classes == ("cat", "dog")
    assert everything(stored(out, "test")).labels.tolist() == [0, 1]

    tables = [pq.read_table(out / f"train-0000{number}-of-00002.parquet") for number in (0, 1)]
    assert [table["index"].to_pylist() for table in tables] == [[0, 1, 2], [4, 5, 6]], "its index is absent"
    assert tables[1]["name"].to_pylist()[0].endswith("images/train/dog/4.jpg")
    (line,) = (out / "corrupt.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["split"], told["index"]) == ("train", 3)
    assert told["name"].endswith("train/cat/3.png")
    assert told["reason"]


def test_the_manifest_has_what_there_is(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_source(images, str(out), SMALL)
    manifest = json.loads((out / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    assert (train["rows"], train["corrupt"], train["classes"]) == (6, 1, ["cat", "dog"])
    assert manifest["data"]["path"] == str(tmp_path / "images")
    assert "image_size" not in manifest["data"], "the training pipeline has no part in it"
    assert manifest["source"]["train"]["fingerprint"] == ImageFolder(images).required("train").fingerprint
    for file in [*train["files"], *manifest["splits"]["test"]["files"]]:
        assert (out / file["name"]).stat().st_size == file["bytes"]
        assert pq.read_metadata(out / file["name"]).num_rows == file["rows"]


@dataclass(frozen=True, kw_only=True)
class TagsConfig(DataConfig):
    name: str = f"{__file__}:Tags"
    num_broken: int = 0


class Tags(Source):
    """Five images with two labels each; the first `num_broken` cannot be decoded."""

    Config = TagsConfig

    def split(self, name: str) -> Split | None:
        return _TagsSplit(self.config.num_broken) if name == "train" else None


class _TagsSplit(Split):
    classes = ("red", "röund")
    is_multilabel = True
    is_random_access = True

    def __init__(self, num_broken: int) -> None:
        self.num_broken = num_broken
        self.unit_sizes = runs(5)
        self.fingerprint = "tags"

    def read(self, index: Int64s) -> Rows:
        labels = np.stack([index % 2, index % 3 - 1], 1)
        images = [None if row < self.num_broken else file_of(row) for row in index.tolist()]
        return Rows(images, labels, [f"tag \udcff {row}" for row in index.tolist()])


def test_several_labels_an_image_are_kept(tmp_path: Path) -> None:
    ingest_source(TagsConfig(), str(tmp_path), Layout(seed=None))
    copy = stored(tmp_path)
    assert copy.is_multilabel
    assert copy.classes == ("red", "röund")
    assert np.array_equal(everything(copy).labels, _TagsSplit(0).read(np.arange(5)).labels)
    assert pq.read_table(tmp_path / "train-00000-of-00001.parquet")["name"].to_pylist()[4] == "tag \\udcff 4"


def test_a_part_without_a_valid_image_is_an_empty_file(tmp_path: Path) -> None:
    done = ingest_source(TagsConfig(num_broken=3), str(tmp_path), Layout(rows_per_file=2, rows_per_group=2, seed=None))
    assert (done.rows, done.num_files) == ({"train": 2}, 3)
    assert everything(stored(tmp_path)).images == [file_of(3), file_of(4)]


def test_a_split_without_a_valid_image_fails_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"none of the 5 train images can be decoded; 0 is tag .* 0: no image"):
        ingest_source(TagsConfig(num_broken=5), str(tmp_path))
    assert not (tmp_path / "manifest.json").exists()


# smaller images


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(40, 100, (16, 40)), (100, 41, (39, 16)), (33, 33, (16, 16))]
)
def test_the_short_side_is_shrunk_and_the_shape_kept(height: int, width: int, expected: tuple[int, int]) -> None:
    assert shrink(torch.zeros(3, height, width, dtype=torch.uint8), 16).shape == (3, *expected)


def test_shrinking_is_antialiased() -> None:
    lines = (torch.arange(64) % 2 * 255).to(torch.uint8).expand(3, 64, 64).contiguous()  # black and white in turn
    small = shrink(lines, 8)[:, 2:-2, 2:-2].float()
    assert small.mean().item() == pytest.approx(127.5, abs=3)
    assert small.std().item() < 5


def test_nothing_is_enlarged_and_large_images_become_jpeg_files(tmp_path: Path) -> None:
    small, large = file_of(1, size=(40, 16)), file_of(1, size=(80, 40))
    assert encode_for_storage(small, 16, 95) == small
    shrunken = encode_for_storage(large, 16, 95)
    assert shrunken[:2] == b"\xff\xd8"
    assert decode(shrunken).shape == (3, 16, 32)
    assert (decode(shrunken).float() - decode(large)[:, :16, :32].float()).abs().max() < 4
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    assert len(encode_for_storage(noise, 32, 50)) < len(encode_for_storage(noise, 32, 95))


@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 3)])
def test_pixels_become_a_lossless_file(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert torch.equal(decode(encode_for_storage(pixels, None, 95)), decode(pixels))


def test_what_cannot_be_decoded_is_not_stored() -> None:
    with pytest.raises(CorruptImage):
        encode_for_storage(file_of(1)[:-30], None, 95)


# transparent images


@pytest.fixture
def transparent(tmp_path: Path) -> DataConfig:
    """A small and a large image, wholly transparent, with blue stored under the alpha."""
    for name, size in (("a/small.png", (8, 8)), ("b/large.png", (40, 40))):
        (tmp_path / "clear" / name).parent.mkdir(parents=True)
        buffer = io.BytesIO()
        Image.new("RGBA", size, (0, 0, 255, 0)).save(buffer, "PNG")
        (tmp_path / "clear" / name).write_bytes(buffer.getvalue())
    return ImageFolder.Config(path=str(tmp_path / "clear"))


def test_files_keep_their_alpha_and_the_background_is_that_of_who_reads(
    transparent: DataConfig, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ingest_source(replace(transparent, background="red"), str(out), SMALL)
    assert everything(stored(out)).images == everything(ImageFolder(transparent).required("train")).images
    for background, expected in (("red", [255, 0, 0]), ("white", [255, 255, 255]), ("none", [0, 0, 255])):
        split = Parquet(Parquet.Config(path=str(out), background=background)).required("train")
        image = read_images(split, np.arange(1)).pictures[0].images[0]
        assert image[:, 0, 0].tolist() == expected
    assert ingest_source(transparent, str(out), SMALL).was_done, "the files are the same for any background"
    assert "background" not in json.loads((out / "manifest.json").read_text())


def test_images_that_become_jpeg_files_are_blended_and_the_manifest_says_with_what(
    transparent: DataConfig, tmp_path: Path
) -> None:
    out, layout = tmp_path / "out", replace(SMALL, resize=16)
    ingest_source(replace(transparent, background="red"), str(out), layout)
    small, large = everything(stored(out)).images
    assert small == everything(ImageFolder(transparent).required("train")).images[0]
    assert decode(large)[:, 3, 3].tolist() == pytest.approx([255, 0, 0], abs=3)
    assert json.loads((out / "manifest.json").read_text())["background"] == "red"
    with pytest.raises(ConfigError, match=r"background: red -> white\n"):
        ingest_source(transparent, str(out), layout)


# starts that were cut off


def _killed_at_second_part(config: DataConfig, out: str) -> None:
    def spread(work: Any, splits: Mapping[str, Split], parts: Sequence[SplitPart]) -> Iterator[Any]:
        for number, part in enumerate(parts):
            split = splits[part.split]
            yield work(_Deadly(split) if number == 1 else split, part)

    parts.READ_ROWS = 2  # so that a file takes several reads
    ingest_source(config, out, RANDOM, spread)


class _Deadly(Split):
    """Kills the process at the second read, when a part of the file is written."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.classes, self.num_reads = split.classes, 0
        self.fingerprint, self.unit_sizes = split.fingerprint, split.unit_sizes
        self.is_random_access = split.is_random_access

    def read(self, index: Int64s) -> Rows:
        self.num_reads += 1
        if self.num_reads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.split.read(index)


@pytest.mark.cluster
def test_a_start_that_was_killed_goes_on_and_ends_with_the_same_files(images: DataConfig, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    ingest_source(images, str(whole), RANDOM)
    process = multiprocessing.get_context("spawn").Process(target=_killed_at_second_part, args=(images, str(out)))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    unfinished = list(out.rglob("*.part"))
    assert unfinished
    for path in unfinished:
        os.utime(path, (0, 0))
    assert not (out / "manifest.json").exists()
    first = out / "train-00000-of-00002.parquet"
    kept = first.stat().st_mtime_ns

    done = ingest_source(images, str(out), RANDOM)
    assert not done.was_done
    assert first.stat().st_mtime_ns == kept, "what was whole is not written again"
    assert contents(out) == contents(whole)


def test_unfinished_files_go_once_they_are_left_behind(images: DataConfig, tmp_path: Path) -> None:
    parts = [tmp_path / "out" / name for name in ("test-00000-of-00001.parquet.0.part", ".ingest/x.json.0.part")]
    parts[1].parent.mkdir(parents=True)
    for part in parts:
        part.write_bytes(b"of a start at work elsewhere")
    assert not ingest_source(images, str(tmp_path / "out"), SMALL).was_done
    assert all(part.exists() for part in parts)
    for part in parts:
        os.utime(part, (time.time() - LEFT_BEHIND_S - 1,) * 2)
    assert ingest_source(images, str(tmp_path / "out"), SMALL).was_done
    assert not any(part.exists() for part in parts)


def test_a_file_that_is_not_what_was_noted_is_written_again(images: DataConfig, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    ingest_source(images, str(whole), SMALL)
    shutil.copytree(whole, out)
    for name in ("manifest.json", ".ingest/test-00000-of-00001.parquet.json", "train-00001-of-00002.parquet"):
        (out / name).unlink()
    damaged = bytearray((out / "train-00000-of-00002.parquet").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (out / "train-00000-of-00002.parquet").write_bytes(damaged)
    ingest_source(images, str(out), SMALL)
    assert contents(out) == contents(whole)


def test_a_finished_one_says_so_and_changes_nothing(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = ingest_source(images, str(out), SMALL)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = ingest_source(replace(images, buffer_gb=5.0, image_size=32), str(out), SMALL)
    assert again == replace(first, was_done=True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (out / "train-00001-of-00002.parquet").unlink()
    assert not ingest_source(images, str(out), SMALL).was_done, "a file has gone since"
    assert ingest_source(images, str(out), SMALL).was_done


def test_images_with_other_labels_are_refused(tmp_path: Path) -> None:
    def config(labels: list[int]) -> DataConfig:
        columns = {"image": [file_of(shade) for shade in range(4)], "label": labels}
        pq.write_table(pa.table(columns), tmp_path / "source.parquet")
        return Parquet.Config(train=str(tmp_path / "source.parquet"))

    out, layout = str(tmp_path / "out"), Layout(rows_per_file=2, seed=None)
    ingest_source(config([0, 1, 2, 3]), out, layout)
    for _ in ("finished", "unfinished"):
        with pytest.raises(ConfigError, match="content"):
            ingest_source(config([3, 2, 1, 0]), out, layout)
        (tmp_path / "out" / "manifest.json").unlink(missing_ok=True)
    assert ingest_source(config([0, 1, 2, 3]), out, layout).was_done is False


def test_other_settings_or_images_are_refused_with_what_differs(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_source(images, str(out), SMALL)
    before = contents(out)
    with pytest.raises(ConfigError, match=r"(?s)layout.resize: null -> 8\n.*give another --out, or go back"):
        ingest_source(images, str(out), replace(SMALL, resize=8))
    with pytest.raises(ConfigError, match=r"source.train.rows: 7 -> 3"):
        ingest_source(replace(images, limit=3), str(out), SMALL)
    (tmp_path / "images" / "train" / "cat" / "9.png").write_bytes(file_of(9))
    with pytest.raises(ConfigError, match=r"source.train.fingerprint: \S+ -> \S+\n  source.train.rows: 7 -> 8"):
        ingest_source(images, str(out), SMALL)
    assert contents(out) == before


def test_a_folder_of_other_files_is_left_alone(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "check.json").write_text("{}")  # of --check with the same --out
    (out / ".hidden").write_text("")
    (out / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"out holds files of another origin: thesis.tex; give --out an empty folder"):
        ingest_source(images, str(out), SMALL)
    assert not (out / "ingest.json").exists()
    (out / "thesis.tex").unlink()
    assert not ingest_source(images, str(out), SMALL).was_done
    (out / "README.md").write_text("what this is")
    assert ingest_source(images, str(out), SMALL).was_done
    shutil.copy(out / "test-00000-of-00001.parquet", out / "mine.parquet")
    with pytest.raises(ConfigError, match=r"out holds files of another origin: mine.parquet"):
        ingest_source(images, str(out), SMALL)


@pytest.mark.parametrize(
    ("place", "what"), [("", "is the source itself"), ("/train", "lies in the source"), ("/new", "lies in the source")]
)
def test_the_source_is_not_written_into(images: Any, tmp_path: Path, place: str, what: str) -> None:
    before = contents(tmp_path / "images")
    (tmp_path / "link").symlink_to(tmp_path / "images")
    inner = Concat.Config(sources={"a": images})
    for source in (images, inner):
        for root in ("images", "link"):
            for out in (f"{tmp_path}/{root}{place}", f"file://{tmp_path}/{root}{place}/"):
                with pytest.raises(ConfigError, match=rf"{what}, data\.\S*path=\S+/images; give a folder outside"):
                    ingest_source(source, out, SMALL)
    assert contents(tmp_path / "images") == before


# finished ones are looked at again


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_file_with_another_footer_is_refused_and_written_again(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_source(images, str(out), SMALL)
    before = contents(out)
    damaged = out / "train-00001-of-00002.parquet"
    flip(damaged, damaged.read_bytes().rindex(b"parquet-cpp"))
    assert pq.read_metadata(damaged).num_rows == 3, "another footer, and a readable one"
    with pytest.raises(ConfigError, match=r"unfinished ingest: train-00001-of-00002.parquet is missing or incomplete"):
        stored(out)
    assert not ingest_source(images, str(out), SMALL).was_done
    assert contents(out) == before
    stored(out)


def test_verifying_finds_a_single_bit_that_opening_does_not(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ingest_source(images, str(out), SMALL)
    assert verify(str(out)) == {}
    flip(out / "train-00000-of-00002.parquet", 60)
    stored(out)
    with (out / "train-00001-of-00002.parquet").open("ab") as file:
        file.write(b"x")
    (out / "test-00000-of-00001.parquet").unlink()
    found = verify(str(out))
    assert found.pop("train-00000-of-00002.parquet") == "its bytes differ from those written"
    assert re.fullmatch(r"[\d,]+ bytes, not the [\d,]+ that were written", found.pop("train-00001-of-00002.parquet"))
    assert found == {"test-00000-of-00001.parquet": "it is missing"}


def test_a_manifest_that_is_absent_damaged_or_of_another_format_is_refused(images: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"out holds no finished ingest: manifest.json is missing"):
        verify(str(out))
    ingest_source(images, str(out), SMALL)
    whole = (out / "manifest.json").read_text()
    without_digest = whole.replace('"footer_sha256"', '"footer_sha"', 1)
    for broken in (whole[:50], "[]", '{"splits": {"train": {}}}', without_digest):
        (out / "manifest.json").write_text(broken)
        for read in (lambda: verify(str(out)), lambda: stored(out)):
            with pytest.raises(ConfigError, match=r"manifest.json is damaged; delete it and run the same"):
                read()
    (out / "manifest.json").write_text(whole.replace('"format": 1', '"format": 7', 1))
    with pytest.raises(ConfigError, match=r"manifest.json has format 7, and this raysl reads format 1; run `raysl in"):
        stored(out)


def test_storage_that_returns_other_bytes_is_noticed(
    images: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.storage.folder.Folder.sha256", lambda folder, name: "0" * 64)
    with pytest.raises(RunFailed, match=r"train-00000-of-00002.parquet reads back with other bytes than were written"):
        ingest_source(images, str(tmp_path / "out"), SMALL)
    assert not list((tmp_path / "out" / ".ingest").iterdir())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(rows_per_file=0), r"rows_per_file=0 is out of range; give a finite number of at least 1"),
        (Layout(quality=101), r"quality=101 is out of range; give a number in \[1, 100\]"),
        (Layout(resize=-4), r"resize=-4 is out of range"),
        (Layout(rows_per_file=True), r"rows_per_file=True is a bool; give an integer"),
    ],
)
def test_a_layout_out_of_range_is_refused(tmp_path: Path, layout: Layout, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ingest_source(Digits.Config(), str(tmp_path / "out"), layout)
    assert not (tmp_path / "out").exists()


def test_a_remote_folder_is_filled_like_a_local_one(images: DataConfig, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        assert ingest_source(images, "memory://ingested", SMALL).rows == {"train": 6, "test": 2}
        ingest_source(images, str(tmp_path / "out"), SMALL)
        memory.get("/ingested", str(tmp_path / "copy"), recursive=True)
        assert contents(tmp_path / "copy") == contents(tmp_path / "out")
        assert ingest_source(images, "memory://ingested", SMALL).was_done
    finally:
        memory.rm("/ingested", recursive=True)


def test_a_uri_with_a_query_names_images_and_folder(images: DataConfig, tmp_path: Path) -> None:
    out = f"file://{tmp_path}/out?mode=1"
    source = ImageFolder.Config(path=f"file://{tmp_path}/images/?mode=a/b")
    assert ingest_source(source, out, SMALL).rows == {"train": 6, "test": 2}
    ingest_source(images, str(tmp_path / "plain"), SMALL)
    assert (tmp_path / "out" / "manifest.json").exists()
    assert everything(stored(out)).images == everything(stored(tmp_path / "plain")).images


# parts


def test_parts_hold_every_row_once_and_in_order() -> None:
    split = Digits(Digits.Config(limit=23)).required("test")
    parts = cut_parts({"test": split}, 10)
    assert [part.name for part in parts] == [f"test-0000{number}-of-00003" for number in range(3)]
    rows = [index for part in parts for index in part.runs(4)]
    assert [len(index) for index in rows] == [4, 4, 2, 4, 4, 2, 3]
    assert np.concatenate(rows).tolist() == list(range(23))


def test_classes_are_written_where_any_reader_of_the_file_finds_them(images: DataConfig, tmp_path: Path) -> None:
    split = ImageFolder(images).required("train")
    (tmp_path / "out" / ".ingest").mkdir(parents=True)
    (shard,) = in_process(
        partial(write_shard, str(tmp_path / "out"), SMALL), {"train": split}, cut_parts({"train": split}, 10)
    )
    assert shard.name == "train-00000-of-00001.parquet"
    assert pq.read_schema(tmp_path / "out" / shard.name).metadata[CLASSES_KEY] == b'["cat", "dog"]'


# the command


@pytest.mark.thorough
def test_the_command_verifies_without_a_cluster(images: DataConfig, tmp_path: Path, console: Console) -> None:
    run = partial(console, "ingest")
    out = tmp_path / "out"
    ingest_source(images, str(out), SMALL)
    assert run("--out", str(out), "--verify") == (0, f"whole       {out}\n", "")
    flip(out / "test-00000-of-00001.parquet", 60)
    code, text, _ = run("--out", str(out), "--verify")
    assert code == 1
    assert text.startswith(
        "damaged     test-00000-of-00001.parquet: its bytes differ from those written\ndelete these files"
    )
    for words, message in (
        (("--verify",), "give --out its folder, and nothing else"),
        (("--verify", "--out", str(out), "data=digits"), "give --out its folder, and nothing else"),
        (("--verify", "--out", str(out), "--rows-per-file", "3"), "--rows-per-file has no effect beside --verify"),
        (("--check", "--resize", "8"), "--resize has no effect beside --check, which stores nothing"),
        (("--out", str(out), "--quality", "80"), "--quality has no effect without --resize"),
        (("--check", "--keep-order"), "--keep-order has no effect beside --check, which stores nothing"),
        (("--out", str(out), "--keep-order", "--seed", "1"), "--seed draws an order, and --keep-order draws none"),
    ):
        code, _, error = run(*words)
        assert code == 2
        assert message in error


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
def test_the_command_ingests_on_ray_and_checks(images: DataConfig, tmp_path: Path, console: Console) -> None:
    run = partial(console, "ingest", "data=image_folder", f"data.path={images.path}")
    out = tmp_path / "out"
    code, text, _ = run("--out", str(out), "--rows-per-file", "4", "--rows-per-group", "2")
    assert code == 0
    assert re.fullmatch(r"train +6 images\ntest +2 images\ncorrupt +1 \(see corrupt.jsonl\)\ndataset +\S+/out\n", text)
    ingest_source(images, str(tmp_path / "here"), RANDOM)
    assert contents(out) == contents(tmp_path / "here"), "tasks write what one process writes"

    code, text, _ = run("--check", "--out", str(tmp_path / "lists"))
    assert code == 1
    assert re.search(r"^train 3 \S+/train/cat/3.png: corrupt: ", text)
    assert len((tmp_path / "lists" / "check.jsonl").read_text().splitlines()) == 1
    code, _, error = run()
    assert (code, error) == (2, "error: --out is missing; give a folder or a URI, or --check to write no dataset\n")

    from raysl.data.ingest.on_ray import on_ray

    split = ImageFolder(images).required("train")
    inside_a_file = partial(write_shard, f"{images.path}/train/cat/0.png/out", SMALL)
    with pytest.raises(ConfigError, match=r"^cannot (read|write) '.*/0.png/out"):
        list(on_ray(inside_a_file, {"train": split}, cut_parts({"train": split}, 4)))
