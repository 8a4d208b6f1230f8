import io
import json
import logging
import os
import tarfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from pyarrow import fs

from raysl.data.sources import shard_index
from raysl.data.sources.shard_index import LOCAL_SCANS, ShardIndex, _scan
from raysl.data.sources.shards import Shard
from raysl.data.sources.webdataset import WebDataset
from raysl.errors import ConfigError, RunFailed
from raysl.storage import reads
from tests.data.counted import counted_storage
from tests.data.samples import all_rows, png, sent

Files = dict[str, bytes]


def tar_of(files: Files) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def samples(shades: range) -> Files:
    """An image and a label each, the label the shade."""
    files: Files = {}
    for shade in shades:
        files |= {f"{shade:04d}.png": png(shade), f"{shade:04d}.cls": b"%d\n" % shade}
    return files


def write(path: Path, files: Files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(files))
    return path


def source_of(path: object, **settings: Any) -> WebDataset:
    return WebDataset(WebDataset.Config(path=str(path), **settings))


def labels_of(source: WebDataset, name: str = "train") -> list[int]:
    labels: list[int] = all_rows(source.required(name)).labels.tolist()
    return labels


def message_of(source: WebDataset) -> str:
    with pytest.raises(ConfigError) as caught:
        source.required("train")
    return str(caught.value)


# reading


def test_shards_are_the_units_and_any_order_can_be_read(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", samples(range(3, 5)))
    write(tmp_path / "a.tar", samples(range(3)))
    train = source_of(tmp_path).required("train")
    assert train.unit_sizes.tolist() == [3, 2]
    assert train.classes == ("0", "1", "2", "3", "4")
    assert train.is_random_access
    rows = sent(train).read(np.array([4, 0, 2, 2]))
    assert rows.images == [png(4), png(0), png(2), png(2)]
    assert rows.labels.tolist() == [4, 0, 2, 2]
    assert rows.names[0] == f"{tmp_path}/b.tar: 0004"


def test_members_with_one_key_are_one_sample_wherever_they_stand(tmp_path: Path) -> None:
    files = {
        "x/1.cls": b"5",
        "x/1.JPG": png(1),
        "y/1.png": png(2),
        "z.txt": b"no image",
        "y/1.seg.png": png(9),
        "._y/2.png": png(9),
        "y/._2.png": png(9),
        "y/1.json": json.dumps({"label": 3}).encode(),
        "x/1.json": json.dumps({"label": 4}).encode(),
        "w.json": b"[]",
        "w.webp": png(3),
    }
    rows = all_rows(source_of(write(tmp_path / "a.tar", files)).required("train"))
    assert rows.images == [png(1), png(2), png(3)]
    assert rows.labels.tolist() == [5, 3, -1], ".cls before .json, and -1 without either"


def test_what_systems_leave_behind_in_a_tar_is_no_sample(tmp_path: Path) -> None:
    leftovers = ("./@eaDir/0.png", "__MACOSX/0.png", ".Trash/0.png", "./.ipynb_checkpoints/0.png", "lost+found/0.png")
    path = write(tmp_path / "a.tar", {"./0.png": png(1), **dict.fromkeys(leftovers, png(2))})
    assert all_rows(source_of(path).required("train")).images == [png(1)]


def test_the_field_of_the_label_can_be_named(tmp_path: Path) -> None:
    note = json.dumps({"label": 1, "data": 2}).encode()
    path = write(tmp_path / "a.tar", {"1.png": png(1), "1.json": note})
    assert labels_of(source_of(path)) == [1]
    assert labels_of(source_of(path, label_key="data")) == [2], "though an index with the other field is there"
    unlabelled = source_of(path, label_key=None).required("train")
    assert (all_rows(unlabelled).labels.tolist(), unlabelled.classes) == ([-1], ())


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_names_of_shards_pick_the_split(tmp_path: Path, held_out: str) -> None:
    write(tmp_path / "train-0.tar", samples(range(2)))
    write(tmp_path / held_out / "0.tar", samples(range(1, 2)))
    write(tmp_path / "other.tar", samples(range(9, 10)))
    assert labels_of(source_of(tmp_path)) == [0, 1]
    assert labels_of(source_of(tmp_path), "test") == [1]


def test_a_pattern_names_shards_in_its_order(tmp_path: Path) -> None:
    for number in range(8, 12):
        write(tmp_path / f"s-{number:03d}.tar", samples(range(number, number + 1)))
    assert labels_of(source_of(f"{tmp_path}/s-{{008..010}}.tar")) == [8, 9, 10]
    assert labels_of(source_of(f"{tmp_path}/s-0{{11,08}}.tar")) == [11, 8]
    assert labels_of(source_of(f"file://{tmp_path}/s-{{008..009}}.tar")) == [8, 9]
    classes = tuple(map(str, range(12)))
    both = WebDataset.Config(train=f"{tmp_path}/s-011.tar", test=f"{tmp_path}/s-0{{1..1}}{{0..1}}.tar", classes=classes)
    assert labels_of(WebDataset(both), "test") == [10, 11]


def test_names_of_classes_are_given_or_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(range(2)))
    assert source_of(path, classes=("cat", "dog")).required("train").classes == ("cat", "dog")
    assert "has the label 1, but the training images, or data.classes=, have 1 classes" in message_of(
        source_of(path, classes=("cat",))
    )


def test_held_out_labels_are_of_the_training_classes(tmp_path: Path) -> None:
    write(tmp_path / "train.tar", samples(range(3)))
    write(tmp_path / "val.tar", {"1.png": png(1), "1.cls": b"1"})
    assert source_of(tmp_path).required("test").classes == ("0", "1", "2")
    write(tmp_path / "val.tar", {"longer/1.png": png(1), "longer/1.cls": b"7" + b" " * 2000})
    with pytest.raises(ConfigError, match=r"val\.tar has the label 7, but the training images, .* have 3 classes; n"):
        source_of(tmp_path).required("test")
    alone = WebDataset(WebDataset.Config(test=f"{tmp_path}/val.tar"))
    assert len(alone.required("test").classes) == 8, "without training images it has its own"


def test_names_that_are_no_utf_8_are_read_and_can_be_shown(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", encoding="utf-8", errors="surrogateescape") as tar:
        for name, part in (("caf\udce9.png", png(1)), ("caf\udce9.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = len(part)
            tar.addfile(info, io.BytesIO(part))
    assert b"caf\xe9.png" in (tmp_path / "a.tar").read_bytes()
    rows = all_rows(source_of(tmp_path).required("train"))
    assert (rows.images, rows.labels.tolist()) == ([png(1)], [1])
    assert rows.names == [f"{tmp_path}/a.tar: caf\\xe9"]


def test_other_labels_have_another_fingerprint(tmp_path: Path) -> None:
    prints = []
    for label in (b"1", b"2", b"2"):
        path = write(tmp_path / "a.tar", {"1.png": png(1), "1.cls": label})
        (tmp_path / "a.tar.index.npz").unlink(missing_ok=True)
        prints.append(source_of(path).required("train").fingerprint)
    assert prints[0] != prints[1] == prints[2]


# the index


def test_a_shard_that_is_replaced_by_an_older_one_of_the_same_size_is_looked_through_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"1"})
    assert all_rows(source_of(path).required("train")).labels.tolist() == [1]
    write(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"2"})
    os.utime(tmp_path / "a.tar", (1, 1))
    assert all_rows(source_of(path).required("train")).labels.tolist() == [2]


def test_a_shard_that_is_replaced_by_another_one_of_the_same_size_is_looked_through_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"1"})
    os.utime(tmp_path / "a.tar", (1, 1))
    assert all_rows(source_of(path).required("train")).labels.tolist() == [1]
    write(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"2"})
    os.utime(tmp_path / "a.tar", (2, 2))
    assert all_rows(source_of(path).required("train")).labels.tolist() == [2], "though its index is newer"


def test_shards_whose_paths_look_alike_have_indices_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "s" / "a").mkdir(parents=True)
    write(tmp_path / "s" / "a" / "b.tar", {"1.png": png(1), "1.cls": b"1"})
    write(tmp_path / "s" / "a-b.tar", {"1.png": png(2), "1.cls": b"2"})
    for _ in range(2):
        rows = all_rows(source_of(tmp_path / "s", index=str(tmp_path / "index")).required("train"))
        assert sorted(zip(rows.labels.tolist(), rows.images, strict=True)) == [(1, png(1)), (2, png(2))]


def test_a_shard_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.tar", samples(range(3)))
    first = source_of(tmp_path).required("train")

    def refuse(*_: object) -> None:
        raise AssertionError("the shard is looked through again")

    monkeypatch.setattr("raysl.data.sources.shard_index.read_members", refuse)
    again = source_of(tmp_path).required("train")
    assert again.fingerprint == first.fingerprint
    assert all_rows(again).images == [png(0), png(1), png(2)]


def test_what_is_in_the_shards_is_not_kept_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shade in range(6 * LOCAL_SCANS):
        write(tmp_path / f"{shade:02d}.tar", samples(range(shade, shade + 1)))
    made: list[weakref.ref[ShardIndex]] = []
    num_alive: list[int] = []

    def scanned(shard: Shard, label_key: str) -> ShardIndex:
        made.append(weakref.ref(index := _scan(shard, label_key)))
        num_alive.append(sum(each() is not None for each in made))
        return index

    monkeypatch.setattr("raysl.data.sources.shard_index._scan", scanned)
    split = source_of(tmp_path).required("train")
    assert (split.num_samples, len(split.classes), len(made)) == (6 * LOCAL_SCANS, 6 * LOCAL_SCANS, 6 * LOCAL_SCANS)
    assert max(num_alive) <= 3 * LOCAL_SCANS
    assert not any(each() for each in made)


def test_an_index_older_than_its_shard_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(range(3)))
    assert labels_of(source_of(tmp_path)) == [0, 1, 2]
    write(tmp_path / "a.tar", samples(range(5, 8)))
    os.utime(tmp_path / "a.tar.index.npz", ns=(0, 0))
    assert labels_of(source_of(tmp_path)) == [5, 6, 7]
    write(tmp_path / "a.tar", samples(range(100)))
    os.utime(tmp_path / "a.tar", ns=(0, 0))
    assert len(labels_of(source_of(tmp_path))) == 100, "an older file of another size is another file"


def test_a_shard_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(range(3)))
    train = source_of(tmp_path).required("train")
    write(tmp_path / "a.tar", samples(range(5, 8)))
    (tmp_path / "a.tar.index.npz").unlink()
    with pytest.raises(RunFailed, match=r"the shard .*/a\.tar changed while it was in use; start again"):
        sent(train).read(np.array([0]))


def test_a_shard_that_is_gone_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(range(3)))
    train = source_of(tmp_path).required("train")
    (tmp_path / "a.tar").unlink()
    with pytest.raises(ConfigError, match=r"cannot read '.*/a\.tar': .*; check the address"):
        sent(train).read(np.array([0]))


def test_indices_can_lie_elsewhere_and_shards_may_be_named_alike(tmp_path: Path) -> None:
    for shade, name in enumerate(["x", "y"]):
        write(tmp_path / name / "in" / "0.tar", samples(range(shade, shade + 1)))
    settings = {"index": str(tmp_path / "cache"), "train": str(tmp_path / "y"), "test": str(tmp_path / "x")}
    source = WebDataset(WebDataset.Config(**settings, classes=("a", "b")))
    assert (labels_of(source), labels_of(source, "test")) == ([1], [0])
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert not list((tmp_path / "x").rglob("*.npz"))


def test_a_local_folder_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data" / "a.tar", samples(range(2)))
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "raysl"):
        assert labels_of(source_of(tmp_path / "data", index=str(tmp_path / "file"))) == [0, 1]
    assert "cannot write" in caplog.text
    assert "1 shards are indexed at every start" in caplog.text


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(range(2)))
    (tmp_path / "a.tar.index.npz").write_bytes(b"x")
    assert "a.tar.index.npz is not an index of a shard" in message_of(source_of(tmp_path))


# remote shards


@pytest.fixture
def bucket() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    if memory.exists("/wds"):
        memory.rm("/wds", recursive=True)


def test_remote_shards_are_streamed_and_their_images_read_without_the_rest(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.pipe("/wds/train-0.tar", tar_of(samples(range(4))))
    train = source_of("memory://wds").required("train")
    assert not train.is_random_access
    asked: list[int] = []

    def cat_file(path: str, start: int | None = None, end: int | None = None) -> bytes:
        content = bytes(bucket.store[path].getvalue()[start:end])
        asked.append(len(content))
        if len(asked) in (1, 3):
            raise ConnectionResetError("a network that fails now and then")
        return content

    monkeypatch.setattr(bucket, "cat_file", cat_file)
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    rows = train.read(np.array([3, 1]))
    assert rows.images == [png(3), png(1)]
    assert rows.names[1].endswith("wds/train-0.tar: 0001")
    assert max(asked) < len(tar_of(samples(range(4)))), "the shard itself is not read"


def test_a_network_that_keeps_failing_is_told(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pipe("/wds/train-0.tar", tar_of(samples(range(4))))
    train = source_of("memory://wds").required("train")

    def cat_file(path: str, start: int | None = None, end: int | None = None) -> bytes:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(bucket, "cat_file", cat_file)
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    with pytest.raises(RunFailed, match=r"cannot read '.*wds/train-0\.tar.*' after 5 tries: reset by peer"):
        train.read(np.array([3, 1]))


def test_a_bucket_that_is_missing_is_told(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def info(path: str) -> None:
        raise OSError(f"AWS Error NO_SUCH_BUCKET for {path}\nand much more")

    monkeypatch.setattr(bucket, "info", info)
    reason = "AWS Error NO_SUCH_BUCKET for /none; check the address, the network and the rights"
    assert message_of(source_of("memory://none")) == f"cannot read 'memory://none': {reason}"
    assert message_of(source_of("memory://none/{0..1}.tar")).startswith("cannot read 'memory://none': AWS Error")


def test_the_index_of_a_remote_shard_must_be_kept(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket.pipe("/wds/a.tar", tar_of(samples(range(1))))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(fs.FSSpecHandler, "open_output_stream", refuse)
    assert "give data.index= a folder or URI" in message_of(source_of("memory://wds"))
    assert labels_of(source_of("memory://wds", index=str(tmp_path))) == [0]


# tars that are refused


@pytest.mark.parametrize("name", ["/etc/1.png", "../1.png", "a/../../1.png"])
def test_a_tar_with_a_path_outside_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.tar", {"0.png": png(0), name: png(1)})
    assert message_of(source_of(path)) == f"{path}: the member {name!r} lies outside of the tar; make the tar again"


def test_a_tar_with_links_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("1.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    assert "the member '1.png' is not a plain file" in message_of(source_of(tmp_path))


@pytest.mark.parametrize("place", ["in a header", "between members", "in a member"])
def test_a_tar_that_breaks_off_is_refused_not_shortened(tmp_path: Path, place: str) -> None:
    whole = tar_of({"0.png": png(0), "1.png": bytes(5000)})
    second = 512 + 512
    size = {"in a header": second + 100, "between members": second, "in a member": second + 512 + 1000}[place]
    (tmp_path / "a.tar").write_bytes(whole[:size])
    message = message_of(source_of(tmp_path))
    assert message.startswith(str(tmp_path / "a.tar"))
    assert "make it again" in message
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.parametrize("padding", [1024, 10240, 1 << 20])
def test_tars_joined_behind_the_end_of_the_first_are_refused(tmp_path: Path, padding: int) -> None:
    end = 2 * (512 + 512)
    first = tar_of(samples(range(1)))[:end]
    first += bytes(-end % padding if padding > 1024 else padding)
    (tmp_path / "a.tar").write_bytes(first)
    assert labels_of(source_of(tmp_path)) == [0]
    (tmp_path / "a.tar").write_bytes(first + tar_of(samples(range(1, 3))))
    message = message_of(source_of(tmp_path))
    assert message.startswith(f"{tmp_path / 'a.tar'} goes on behind its end at byte {end:,}; if `cat` joined tars")


def test_the_zeros_behind_the_end_of_a_remote_tar_are_not_all_read(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.data.sources.shards.LARGEST_RECORD", 1 << 16)
    monkeypatch.setattr("raysl.storage.reads.RUN_BYTES", 1 << 16)
    bucket.pipe("/wds/train-0.tar", tar_of(samples(range(4))) + bytes(1 << 20))
    asked: list[int] = []

    def cat_file(path: str, start: int | None = None, end: int | None = None) -> bytes:
        content = bytes(bucket.store[path].getvalue()[start:end])
        asked.append(len(content))
        return content

    monkeypatch.setattr(bucket, "cat_file", cat_file)
    assert labels_of(source_of("memory://wds")) == [0, 1, 2, 3]
    assert sum(asked) < 1 << 18


def test_a_tar_that_is_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    whole = bytearray(tar_of({"0.png": png(0), "1.png": png(1), "2.png": png(2)}))
    whole[1024:1536] = b"x" * 512
    (tmp_path / "a.tar").write_bytes(whole)
    assert "is cut off or damaged at byte 1,024" in message_of(source_of(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.png": b"x", "1.cls": b"\xe9"}, "a.tar: 1.cls holds b'\\xe9', not a number or a name in UTF-8"),
        (
            {"1.png": b"x", "1.cls": b"cat", "2.png": b"x", "2.cls": b"1"},
            "a.tar: the label 'cat' is no whole number, but the shard ",
        ),
        ({"1.png": b"x", "1.json": b"{"}, "a.tar: 1.json holds b'{', not JSON"),
        (
            {"1.png": b"x", "1.json": b'{"label": ["cat"]}'},
            "a.tar: 1.json: label is ['cat'], not a number or a name; set data.label_k",
        ),
        ({"1.txt": b"x"}, "no images in the 1 shards of"),
        ({"1.png": b"x", "1.cls": b"9" * 20}, f"has the label {'9' * 20}; the largest is 10,000,000: are"),
        ({"1.png": b"x", "1.json": b'{"label": -2}'}, "has the label -2; labels are 0, 1, ..., and -1"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path: Path, files: Files, message: str) -> None:
    write(tmp_path / "a.tar", files)
    assert message in message_of(source_of(tmp_path))


def test_places_without_shards_are_told(tmp_path: Path) -> None:
    write(tmp_path / "val-0.tar", samples(range(1)))
    assert "holds only val and test files; give data.train=" in message_of(source_of(tmp_path))
    (tmp_path / "empty").mkdir()
    assert "no .tar files in" in message_of(source_of(tmp_path / "empty"))
    assert "no file or folder" in message_of(source_of(tmp_path / "none"))
    missing = message_of(source_of(f"{tmp_path}/val-{{0..2}}.tar"))
    assert missing.startswith("2 of the 3 files of")
    assert missing.endswith("first 'val-1.tar'")
    assert "neither a range like {000..009} nor a list" in message_of(source_of(f"{tmp_path}/{{a}}.tar"))
    assert "the range {3..1} is empty" in message_of(source_of(f"{tmp_path}/{{3..1}}.tar"))
    assert "webdataset needs data.path=" in message_of(WebDataset(WebDataset.Config()))


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for content in (b"0", b"1"):
            info = tarfile.TarInfo("1.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(content))
    assert "has the member '1.cls' twice" in message_of(source_of(tmp_path))


def test_names_are_labels_and_number_the_held_out_ones(tmp_path: Path) -> None:
    train = {"0.png": png(0), "0.cls": b"dog\n", "1.png": png(1), "1.json": rb'{"label": "cafe\u0301"}'}
    write(tmp_path / "train-0.tar", {**train, "2.png": png(2), "2.cls": b"nan", "3.png": png(3)})
    write(tmp_path / "train-1.tar", {"0.png": png(4), "0.cls": b"ant"})
    write(tmp_path / "test.tar", {"0.png": png(4), "0.cls": "caf\u00e9".encode(), "1.png": png(1), "1.cls": b"dog"})
    for _ in ("made", "read"):
        source = source_of(tmp_path)
        assert source.required("train").classes == ("ant", "caf\u00e9", "dog")
        assert labels_of(source) == [2, 1, -1, -1, 0]
        assert labels_of(source, "test") == [1, 2]
    assert labels_of(source_of(tmp_path, classes=("dog", "ant", "caf\u00e9"))) == [0, 2, -1, -1, 1]
    write(tmp_path / "test.tar", {"0.png": png(4), "0.cls": b"emu"})
    with pytest.raises(ConfigError, match="has labels that no training image has: 'emu'; use the same names"):
        source_of(tmp_path).required("test")


def test_held_out_numbers_that_no_training_image_has_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.tar", samples(range(1, 4)))
    write(tmp_path / "test.tar", samples(range(3)))
    with pytest.raises(ConfigError, match="has labels that no training image has: 0; number the classes alike"):
        source_of(tmp_path).required("test")
    assert labels_of(source_of(tmp_path, classes=tuple("abcd")), "test") == [0, 1, 2]


# what is named or left out


@pytest.mark.parametrize("photo", ["jpg", "JPEG", "webp"])
def test_a_photo_is_read_before_a_mask_and_a_note_says_so(tmp_path: Path, photo: str) -> None:
    masks = {"0.png": png(0), f"0.{photo}": png(1), "0.cls": b"0", "1.tif": png(2), "1.png": png(3), "2.png": png(4)}
    path = write(tmp_path / "a.tar", masks)
    for _ in ("made", "read"):
        split = source_of(path).required("train")
        assert all_rows(split).images == [png(1), png(2), png(4)]
        (note,) = split.notes
        assert note.startswith(
            f"of samples with several images in '{path}', 2 images will not be read, such as 0.png beside 0.{photo}: "
        )
    for key in ("png", ".PNG"):
        chosen = source_of(path, image_key=key).required("train")
        assert (all_rows(chosen).images, chosen.notes) == ([png(0), png(3), png(4)], ())
    assert f"no images in the 1 shards of '{path}'; members end in gif" in message_of(source_of(path, image_key="gif"))
    seg = write(tmp_path / "b.tar", {"0.jpg": png(0), "0.seg.png": png(1)})
    assert all_rows(source_of(seg, image_key="seg.png").required("train")).images == [png(1)]


def test_images_that_dots_in_their_names_leave_out_are_counted(tmp_path: Path) -> None:
    files = {"a.jpg": png(0), "a.seg.png": png(1), "b.v1.0001.png": png(2), "b.v1.0002.png": png(3), "c.txt": b""}
    for _ in ("made", "read"):
        split = source_of(write(tmp_path / "0.tar", files)).required("train")
        (note,) = split.notes
        assert note.startswith(
            f"2 images in '{tmp_path}/0.tar' are left out, such as 'b.v1.0001.png': the key of a sample ends"
        )
        assert all_rows(split).images == [png(0)]
    write(tmp_path / "0.tar", {"b.v1.0001.png": png(2)})
    assert "no images in the 1 shards of" in message_of(source_of(tmp_path))
    assert "the key of a sample ends at the first dot" in message_of(source_of(tmp_path))


def test_every_format_that_is_read_may_be_in_a_shard(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"1.jfif": png(0), "2.ppm": png(1), "3.jp2": png(2), "4.tif": png(3)})
    assert source_of(tmp_path).required("train").num_samples == 4


def test_whole_numbers_may_be_written_as_floats(tmp_path: Path) -> None:
    files = {"1.png": png(0), "1.cls": b"1.0\n", "2.png": png(1), "2.json": b'{"label": 2.0}'}
    assert labels_of(source_of(write(tmp_path / "a.tar", files))) == [1, 2]


def test_a_field_or_classes_that_no_sample_has_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"1.png": png(1), "1.json": b'{"kind": 2}'})
    assert message_of(source_of(path, label_key="class")) == (
        f"no sample of '{path}' has the field 'class' in its .json; set data.label_key="
    )
    assert "data.classes= names 2 classes, but no sample of" in message_of(source_of(path, classes=("a", "b")))


def shard_of_noise(path: Path, num: int, num_bytes: int = 3000, other: int = 10) -> None:
    """A tar of images of random bytes, each with a label and another file."""
    noise = np.random.default_rng(0)
    members = {}
    for number in range(num):
        members[f"{number:04}.jpg"] = noise.bytes(num_bytes)
        members[f"{number:04}.cls"] = str(number % 7).encode()
        members[f"{number:04}.txt"] = b"x" * other
    path.write_bytes(tar_of(members))


def test_a_run_of_members_is_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_index, "RUN_BYTES", 50_000)
    monkeypatch.setattr(reads, "RUN_BYTES", 50_000)
    shard_of_noise(tmp_path / "train-0.tar", 100)
    shard_of_noise(tmp_path / "train-1.tar", 5)
    here = source_of(tmp_path).required("train")
    with counted_storage() as storage:
        split = source_of(f"counted://{tmp_path}").required("train")
        assert split.unit_sizes.tolist() == [100, 5]
        units = split.read_units
        assert units.tolist() == [*[9] * 11, 1, 5], "9 such members are 50 kB with all that is beside them"
        ends = np.cumsum(units)
        split.labels_of(np.arange(105))  # reads the indices
        for start, end in zip(ends - units, ends, strict=True):
            storage.requests.clear()
            storage.num_bytes = 0
            index = np.random.default_rng(1).permutation(np.arange(start, end))
            assert split.read(index).images == here.read(index).images
            assert storage.requests == {"open": 1, "read": 1}
            assert storage.num_bytes <= 50_000


def test_images_with_much_between_them_are_read_without_it(tmp_path: Path) -> None:
    shard_of_noise(tmp_path / "train-0.tar", 10, other=100_000)
    source_of(tmp_path).required("train")
    with counted_storage() as storage:
        split = source_of(f"counted://{tmp_path}").required("train")
        split.labels_of(np.arange(10))
        storage.num_bytes = 0
        split.read(np.arange(10))
        assert storage.num_bytes == 10 * 3000


@pytest.mark.parametrize(("num_bytes", "most_share", "most_requests"), [(3000, 1.01, 12), (3_000_000, 0.1, 45)])
def test_an_index_is_made_from_ranges_of_the_shard(
    tmp_path: Path, num_bytes: int, most_share: float, most_requests: int
) -> None:
    num = 200 if num_bytes == 3000 else 8
    shard_of_noise(tmp_path / "train-0.tar", num, num_bytes)
    size = (tmp_path / "train-0.tar").stat().st_size
    with counted_storage() as storage:
        shard = Shard(f"counted://{tmp_path}", "train-0.tar", size, None)
        index = _scan(shard, None)
        assert storage.num_bytes <= most_share * size
        assert storage.requests["read"] <= most_requests
    assert np.array_equal(index.offsets, _scan(Shard(str(tmp_path), "train-0.tar", size, None), None).offsets)
    assert index.labels.tolist() == [number % 7 for number in range(num)]


def test_a_start_over_many_shards_reads_one_file_of_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_index, "LEAST_SHARDS", 5)
    for number in range(5):
        write(tmp_path / f"train-{number}.tar", samples(range(number, 2 * number + 1)))
    first = source_of(tmp_path).required("train")
    (stored,) = tmp_path.glob("*.shards.json")
    with counted_storage() as storage:
        again = source_of(f"counted://{tmp_path}").required("train")
        assert set(storage.reads) == {str(stored)} or not storage.reads
    (tmp_path / "train-2.tar.index.npz").unlink()
    write(tmp_path / "train-2.tar", samples(range(20, 24)))
    changed = source_of(tmp_path).required("train")
    assert changed.num_samples == first.num_samples + 1
    assert again.fingerprint == first.fingerprint != changed.fingerprint
    assert source_of(tmp_path).required("train").fingerprint == changed.fingerprint
    for damage in (b"of no use", stored.read_bytes().replace(b'"read_units": [1]', b'"read_units": [2]', 1)):
        assert damage != stored.read_bytes()
        stored.write_bytes(damage)
        again = source_of(tmp_path).required("train")
        assert again.fingerprint == changed.fingerprint
        assert again.read_units.sum() == again.num_samples


@pytest.mark.parametrize("units", [[4], [3, -1, 1], [2, 0, 1], []])
def test_an_index_whose_read_units_do_not_fit_its_images_is_refused(tmp_path: Path, units: list[int]) -> None:
    write(tmp_path / "a.tar", samples(range(3)))
    source_of(tmp_path).required("train")
    index = tmp_path / "a.tar.index.npz"
    stored = dict(np.load(index))
    facts = json.loads(stored["facts"].tobytes())
    facts["summary"]["read_units"] = units
    np.savez(index, **{**stored, "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)})
    assert message_of(source_of(tmp_path)) == (
        f"{index} is not an index of a shard (its read units do not hold each image once); delete it"
    )
