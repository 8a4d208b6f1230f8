"""A dataset of Ray Data becomes a folder that `data=parquet` streams."""

import io
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import ray.data
import torch
from PIL import Image
from ray.data import Dataset
from ray.data.datasource.partitioning import Partitioning

import raysl
from raysl.cluster.connection import connect
from raysl.data.decode.decode import decode, open_image
from raysl.data.ingest import ray_dataset
from raysl.data.ingest.ingest import verify
from raysl.data.ingest.shard import RECORDS, encode_png
from raysl.data.source import Split
from raysl.data.sources.parquet import Parquet
from raysl.errors import ConfigError, RunFailed
from tests.bucket import Bucket

pytestmark = pytest.mark.usefixtures("shared_ray")

BROKEN = 5


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 10), (number, 99, 255 - number)).save(buffer, "PNG")
    return buffer.getvalue()


def rows(num: int = 20) -> list[dict[str, Any]]:
    """Images of three classes; one is broken."""
    images = [png(number)[:30] if number == BROKEN else png(number) for number in range(num)]
    return [{"image": image, "label": number % 3, "path": f"{number}.png"} for number, image in enumerate(images)]


def dataset(num: int = 20, num_blocks: int = 4) -> Dataset:
    return ray.data.from_items(rows(num), override_num_blocks=num_blocks)


def stored(uri: object) -> Split:
    return Parquet(Parquet.Config(path=str(uri))).required("train")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_row_is_stored_once_in_a_random_order_and_corrupt_ones_are_listed(tmp_path: Path) -> None:
    done = raysl.ingest(dataset(), str(tmp_path), rows_per_file=8)
    assert (done.rows, done.num_files, done.num_corrupt, done.was_done) == ({"train": 19}, 3, 1, False)
    split = stored(tmp_path)
    read = split.read(np.arange(19))
    names = [f"{number}.png" for number in range(20) if number != BROKEN]
    assert sorted(read.names) == sorted(names) != read.names
    for image, label, name in zip(read.images, read.labels.tolist(), read.names, strict=True):
        number = int(name.removesuffix(".png"))
        assert (image, label) == (png(number), number % 3)
    assert split.classes == ("0", "1", "2")
    files = sorted(tmp_path.glob("train-*.parquet"))
    assert sorted(pq.read_metadata(path).num_rows for path in files) == [4, 7, 8], "rows 0 to 7 without the broken one"
    (line,) = (tmp_path / "corrupt.jsonl").read_text().splitlines()
    assert [json.loads(line)[key] for key in ("split", "index", "name")] == ["train", BROKEN, "5.png"]
    assert verify(str(tmp_path)) == {}


def test_the_files_belong_to_rows_and_seed_whatever_blocks_bring_them(tmp_path: Path) -> None:
    for name, blocks, seed in (("a", 4, 0), ("b", 7, 0), ("c", 4, 1)):
        raysl.ingest(dataset(num_blocks=blocks), str(tmp_path / name), rows_per_file=8, seed=seed)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert not {name for name in a if name.startswith("train-")} & set(c)


def test_files_keep_their_rows_where_blocks_of_ray_data_are_smaller(tmp_path: Path) -> None:
    whole, small = dataset(), dataset()
    small.context.target_max_block_size = 500
    for name, images in (("whole", whole), ("small", small)):
        raysl.ingest(images, str(tmp_path / name), rows_per_file=16)
    assert contents(tmp_path / "small") == contents(tmp_path / "whole")


@pytest.mark.parametrize("rows_per_file", [1, 2])
def test_arrays_are_stored_without_loss_and_names_of_classes_are_numbered(rows_per_file: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels = [generator.integers(0, 256, (4 + number, 6, 3)).astype(np.uint8) for number in range(6)]
    labels = ["dog", "cat", None, "dog", "cat", "dog"]
    images = ray.data.from_items(
        [
            {"image": image, "label": label, "name": str(number)}
            for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
        ]
    )
    raysl.ingest(images, str(tmp_path), rows_per_file=rows_per_file)
    split = stored(tmp_path)
    assert split.classes == ("cat", "dog")
    read = split.read(np.arange(6))
    for image, label, name in zip(read.images, read.labels.tolist(), read.names, strict=True):
        assert torch.equal(decode(image).permute(1, 2, 0), torch.from_numpy(pixels[int(name)]))
        assert label == {"cat": 0, "dog": 1, None: -1}[labels[int(name)]]


def test_files_of_any_size_and_mode_are_read_by_ray_data_or_as_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    shapes = {"L": (9, 8), "LA": (8, 9, 2), "RGB": (12, 10, 3), "RGBA": (7, 9, 4)}
    for mode, shape in shapes.items():
        (tmp_path / "files" / mode).mkdir(parents=True)
        pixels = generator.integers(0, 256, shape).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "files" / mode / "a.png")
    files = str(tmp_path / "files")
    partitioning = Partitioning("dir", field_names=["label"], base_dir=files)
    read = ray.data.read_images(files, partitioning=partitioning, include_paths=True)
    as_bytes = ray.data.read_binary_files(files, partitioning=partitioning, include_paths=True)
    frame = pd.DataFrame(as_bytes.rename_columns({"bytes": "image"}).take_all())
    nested = frame.assign(image=[{"bytes": image, "path": None} for image in frame["image"]])
    for number, images in enumerate(
        (read, ray.data.from_pandas(frame), ray.data.from_items(nested.to_dict("records")))
    ):
        out = tmp_path / f"{number}"
        assert raysl.ingest(images, str(out)).rows == {"train": 4}
        split = stored(out)
        assert split.classes == tuple(shapes)
        rows = split.read(np.arange(4))
        for image, label, name in zip(rows.images, rows.labels.tolist(), rows.names, strict=True):
            mode = split.classes[label]
            assert name.endswith(f"{mode}/a.png")
            assert torch.equal(decode(image), decode((tmp_path / "files" / mode / "a.png").read_bytes()))


def test_large_images_are_shrunk_once(tmp_path: Path) -> None:
    wide = np.tile(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (60, 1, 3))  # [60, 120, 3]
    images = [{"image": wide, "name": "array"}, {"image": encode_png(wide), "name": "file"}]
    raysl.ingest(ray.data.from_items([images[0]]).union(ray.data.from_items([images[1]])), str(tmp_path), resize=30)
    first, second = stored(tmp_path).read(np.arange(2)).images
    assert first == second
    with open_image(first) as file:
        assert file.format == "JPEG"
    assert decode(first).shape == (3, 30, 60)


def test_images_without_labels_and_names_are_unlabelled(tmp_path: Path) -> None:
    raysl.ingest(dataset().drop_columns(["label", "path"]), str(tmp_path))
    split = stored(tmp_path)
    assert (split.classes, set(split.labels_of(np.arange(19)).tolist())) == ((), {-1})


def test_rows_that_come_twice_are_stored_twice(tmp_path: Path) -> None:
    twice = dataset().union(dataset())
    assert raysl.ingest(twice, str(tmp_path), rows_per_file=10).rows == {"train": 38}
    assert stored(tmp_path).num_samples == 38
    assert raysl.ingest(twice, str(tmp_path), rows_per_file=10).was_done


def test_a_finished_one_changes_nothing_and_other_rows_are_refused(tmp_path: Path) -> None:
    first = raysl.ingest(dataset(), str(tmp_path), rows_per_file=8)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = raysl.ingest(dataset(), str(tmp_path), rows_per_file=8)
    assert (again.was_done, again.rows, again.num_corrupt) == (True, first.rows, 1)
    for other in (dataset(12), dataset(16), dataset().sort("path")):
        with pytest.raises(ConfigError, match=r"holds a finished ingest of other rows, .*; give another folder"):
            raysl.ingest(other, str(tmp_path), rows_per_file=8)
    with pytest.raises(ConfigError, match=r"layout.rows_per_file: 8 -> 9"):
        raysl.ingest(dataset(), str(tmp_path), rows_per_file=9)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def _killed_after_a_file(out: str) -> None:
    connect()
    blocks = ray_dataset.blocks

    def deadly(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield next(blocks(*arguments, **options))
        os.kill(os.getpid(), signal.SIGKILL)

    ray_dataset.blocks = deadly
    raysl.ingest(dataset(), out, rows_per_file=4)


@pytest.mark.slow
def test_a_killed_ingest_goes_on_and_ends_with_the_same_files(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    raysl.ingest(dataset(), str(whole), rows_per_file=4)
    process = multiprocessing.get_context("spawn").Process(target=_killed_after_a_file, args=(str(out),))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "manifest.json").exists()
    # a file without a record may be one that the kill has interrupted
    complete = [out / record.stem for record in (out / RECORDS).glob("train-*.parquet.json")]
    kept = {path: path.stat().st_mtime_ns for path in complete}
    assert kept
    for part in out.rglob("*.part"):
        os.utime(part, (0, 0))
    assert not raysl.ingest(dataset(), str(out), rows_per_file=4).was_done
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was whole is not written again"
    assert contents(out) == contents(whole)


def test_files_of_an_earlier_start_with_other_rows_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raysl.ingest(dataset(12), str(tmp_path / "out"), rows_per_file=8)
    (tmp_path / "out" / "manifest.json").unlink()
    raysl.ingest(dataset(), str(tmp_path / "out"), rows_per_file=8)
    raysl.ingest(dataset(), str(tmp_path / "whole"), rows_per_file=8)
    assert "1 files of an earlier start had other rows" in caplog.text
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def _raising(row: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("colour")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            lambda: dataset().rename_columns({"image": "bytes"}),
            r"no column 'image'; its columns: bytes, label, path; ren",
        ),
        (
            lambda: dataset().drop_columns(["image"]).rename_columns({"path": "image"}),
            r"holds '0.png', a str; give enc",
        ),
        (
            lambda: ray.data.from_items([{"image": np.zeros((4, 4, 3))}]),
            r"is float64 \[4, 4, 3\]; give pixels from 0 to 2",
        ),
        (
            lambda: ray.data.from_items([{"image": png(1), "label": [1, 0]}]),
            r"'label' holds .* give an integer or a name",
        ),
        (
            lambda: ray.data.from_items([{"image": png(1), "label": "a"}, {"image": png(2), "label": "3"}]),
            r"no whole num",
        ),
        (
            lambda: dataset(8, 2).map(lambda row: row if row["path"] < "4" else {**row, "label": "cat"}),
            r"the dataset has names as labels, such as 'cat', and numbers, such as 2; use one of both",
        ),
        (lambda: dataset().filter(lambda row: False), r"the dataset has no rows; give one with images"),
        (lambda: dataset().limit(0), r"the dataset has no rows"),
    ],
)
def test_bad_datasets_are_refused_in_one_line(images: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        raysl.ingest(images(), str(tmp_path), rows_per_file=4)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "manifest.json").exists()


def test_other_mistakes_are_told_before_anything_is_read(tmp_path: Path) -> None:
    for call, message in (
        (lambda: raysl.ingest(dataset(), "sftp3://x/y"), r"cannot open 'sftp3://x/y'"),
        (lambda: raysl.ingest(dataset(), str(tmp_path), seed=None), r"seed: None keeps the order of a source"),
        (lambda: raysl.ingest(dataset(), str(tmp_path), rows_per_file=0), r"rows_per_file=0 is out of range"),
        (
            lambda: raysl.ingest("s3://bucket/images", str(tmp_path)),
            r"data: .* is not a DataConfig; .* ray.data.Dataset",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(RunFailed, match=r"the dataset failed: KeyError: 'colour'"):
        raysl.ingest(dataset().map(_raising), str(tmp_path / "out"))
    with pytest.raises(RunFailed, match=r"none of the 1 train images can be decoded; 0 is row 0 of train-"):
        raysl.ingest(ray.data.from_items([{"image": b"no image"}]), str(tmp_path / "none"))


def test_a_bucket_is_filled_like_a_folder(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    uri = bucket.uri("images").replace("s3://", "s3://a:b@")
    try:
        raysl.ingest(dataset(), uri, rows_per_file=8)
        raysl.ingest(dataset(), str(tmp_path / "local"), rows_per_file=8)
        there, here = stored(uri), stored(tmp_path / "local")
        assert there.fingerprint == here.fingerprint
        assert there.read(np.arange(19)).images == here.read(np.arange(19)).images
    finally:
        bucket.close()
