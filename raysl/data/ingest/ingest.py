"""Any dataset into a folder of Parquet files that `data=parquet` streams.

The folder holds `train-00000-of-00012.parquet`, `test-...` with the columns `index` (place in the source's split),
`image` (an encoded file), `label` and `name`; `ingest.json`, what was asked for; `corrupt.jsonl`, a line for each image
that cannot be decoded, which is left out together with its index; and at the end `manifest.json`, what there is. A
start that was cut off goes on when it is asked for again: files that are whole are kept, by their checksums.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial

from pyarrow import fs
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from raysl.components import resolve
from raysl.config.arguments import instance
from raysl.config.dump import plain
from raysl.config.schema import DataConfig
from raysl.data.ingest.folder import CORRUPT_FILE, claim, text_of
from raysl.data.ingest.ingested import MANIFEST_FILE, Json, files_of, first_damaged, read_manifest
from raysl.data.ingest.shard import RECORDS, Layout, Shard, ShardWriter
from raysl.data.ingest.split_parts import SplitPart, Spread, in_process, parts_of, splits_of, tell_notes
from raysl.data.source import Split
from raysl.errors import ConfigError, RunFailed
from raysl.redact import bare_tree
from raysl.storage.folder import PART, Folder
from raysl.storage.reads import REMOTE_READS

log = logging.getLogger("raysl")

FORMAT = 1
LEFT_BEHIND_S = 600.0  # after which an unfinished file that nobody adds to is one of a start that was cut off
CHOICE = ("name", "limit", "balanced", "skip", "subset", "label_type")  # common settings that pick images and labels


@dataclass(frozen=True)
class Ingested:
    """A dataset that is stored.

    Args:
        uri: its folder.
        rows: images of each split.
        num_files: Parquet files.
        num_bytes: their size.
        num_corrupt: images that cannot be decoded and were left out.
        was_done: whether all of it was there before.
    """

    uri: str
    rows: Mapping[str, int]
    num_files: int
    num_bytes: int
    num_corrupt: int
    was_done: bool


def ingest(data: DataConfig, out: str, layout: Layout | None = None, spread: Spread = in_process) -> Ingested:
    """Store all images of a dataset as Parquet files, or what is missing of them.

    Args:
        data: settings of the dataset.
        out: local path or URI of a folder that is new, or that the same call began to fill.
        layout: how to store; default: files of 10,000 images as they are.
        spread: `in_process`, or `raysl.data.ingest.ray_tasks.on_ray`, which uses a cluster.

    Raises:
        ConfigError: if a setting is out of its range, the images or the folder cannot be read or written, or the folder
            holds something else.
        RunFailed: if a split has no image that can be decoded, or storage fails again and again.
    """
    instance(data, DataConfig, "data", "settings of a dataset, as raysl.load_config('quickstart').data")
    layout = instance(layout or Layout(), Layout, "layout", "raysl.data.ingest.shard.Layout(resize=256), or None")
    _check(layout)
    folder = Folder(out)
    splits = splits_of(resolve("source", data.name)(data))
    tell_notes(splits.values())
    plan = _plan(data, splits, layout)
    claim(folder, plan, data)
    if (manifest := _finished(folder, plan)) is not None:
        _sweep(folder)
        return _ingested(folder, manifest, was_done=True)
    parts = parts_of(splits, layout.rows_per_file)
    folder.child(RECORDS).make()
    shards = _written(ShardWriter(folder.uri, layout), splits, parts, spread)
    manifest = plan | {"splits": {name: _summary(name, split, parts, shards) for name, split in splits.items()}}
    _write_corrupt(folder, parts, shards)
    _sweep(folder)
    folder.write(MANIFEST_FILE, text_of(manifest))
    return _ingested(folder, manifest, was_done=False)


def verify(out: str) -> dict[str, str]:
    """Compare every byte of a finished ingest with its manifest.

    Args:
        out: local path or URI of its folder.

    Returns:
        What is wrong with each file that is damaged, by its name; empty where all is well.

    Raises:
        ConfigError: if there is no finished ingest, or it cannot be read.
    """
    folder = Folder(out)
    files = files_of(read_manifest(folder.system, folder.path))
    damaged: dict[str, str] = {}
    with _progress("files", len(files)) as advance, ThreadPoolExecutor(REMOTE_READS) as pool:
        for file, problem in zip(files, pool.map(partial(_problem, folder), files), strict=True):
            advance(1)
            if problem is not None:
                damaged[file["name"]] = problem
    return damaged


def _problem(folder: Folder, file: Json) -> str | None:
    num_bytes = folder.size(file["name"])
    if num_bytes is None:
        return "it is missing"
    if num_bytes != file["bytes"]:
        return f"{num_bytes:,} bytes, not the {file['bytes']:,} that were written"
    return None if folder.sha256(file["name"]) == file["sha256"] else "other bytes than were written"


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; gives what is called with each advance."""
    text = f"{{task.completed:,}}/{{task.total:,}} {what}"
    bar = Progress(TextColumn(text), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    task = bar.add_task(what, total=total)
    with bar if bar.console.is_terminal else nullcontext():  # elsewhere it would end with an empty line
        yield lambda number: bar.advance(task, number)


def _check(layout: Layout) -> None:
    lines = [
        f"{name.replace('_', '-')}: {value} is out of range; give at least 1"
        for name, value in asdict(layout).items()
        if value is not None and value < 1
    ]
    if layout.quality > 100:
        lines.append(f"quality: {layout.quality} is out of range; give 1 to 100")
    if lines:
        raise ConfigError("\n".join(lines))


def _plan(data: DataConfig, splits: Mapping[str, Split], layout: Layout) -> Json:
    """What decides what the files hold, as JSON has it: neither settings of the training pipeline nor credentials."""
    common = {field.name for field in dataclasses.fields(DataConfig)} - set(CHOICE)
    settings = {name: value for name, value in bare_tree(plain(data)).items() if name not in common}
    sources = {name: {"fingerprint": split.fingerprint, "rows": split.num_samples} for name, split in splits.items()}
    tree = {"format": FORMAT, "data": settings, "source": sources, "layout": asdict(layout)}
    if layout.resize is not None:  # else files keep their alpha, and who reads them says what to see it on
        tree["background"] = data.background
    plan: Json = json.loads(json.dumps(tree))
    return plan


def _finished(folder: Folder, plan: Json) -> Json | None:
    """The manifest, where all the files that it lists are there in full size and with their own footers."""
    if not folder.exists(MANIFEST_FILE):
        return None
    manifest = read_manifest(folder.system, folder.path)
    files = files_of(manifest)
    infos = folder.system.get_file_info([f"{folder.path}/{file['name']}" for file in files])
    sizes = {info.path: info.size for info in infos}
    is_whole = first_damaged(folder.system, folder.path, files, sizes) is None
    return manifest if is_whole and manifest.items() >= plan.items() else None


def _sweep(folder: Folder) -> None:
    """Remove unfinished files that were left behind; those of another start that is at work here are newer."""
    for inner in (folder, folder.child(RECORDS)):
        for entry in inner.entries():
            is_part = entry.type == fs.FileType.File and entry.base_name.endswith(PART)
            if is_part and entry.mtime is not None and time.time() - entry.mtime.timestamp() > LEFT_BEHIND_S:
                inner.remove(entry.base_name)


def _written(
    writer: ShardWriter, splits: Mapping[str, Split], parts: list[SplitPart], spread: Spread
) -> dict[str, Shard]:
    """The files of all parts, by name."""
    sizes = {f"{part.name}.parquet": part.end - part.first for part in parts}
    shards: dict[str, Shard] = {}
    with _progress("images", sum(sizes.values())) as advance:
        for shard in spread(writer, splits, parts):
            shards[shard.name] = shard
            advance(sizes[shard.name])
    return shards


def _summary(name: str, split: Split, parts: list[SplitPart], shards: Mapping[str, Shard]) -> Json:
    """What the manifest says of a split."""
    own = [shards[f"{part.name}.parquet"] for part in parts if part.split == name]
    rows = sum(shard.rows for shard in own)
    if rows == 0:
        index, where, reason = own[0].corrupt[0]
        raise RunFailed(f"none of the {split.num_samples:,} {name} images can be decoded; {index} is {where}: {reason}")
    files = [
        {
            "name": shard.name,
            "rows": shard.rows,
            "bytes": shard.num_bytes,
            "sha256": shard.sha256,
            "footer_bytes": shard.footer_bytes,
            "footer_sha256": shard.footer_sha256,
        }
        for shard in own
    ]
    return {
        "rows": rows,
        "corrupt": split.num_samples - rows,
        "classes": list(split.classes),
        "is_multilabel": split.is_multilabel,
        "files": files,
    }


def _write_corrupt(folder: Folder, parts: Iterable[SplitPart], shards: Mapping[str, Shard]) -> None:
    lines = [
        json.dumps({"split": part.split, "index": index, "name": name, "reason": reason}) + "\n"
        for part in parts
        for index, name, reason in shards[f"{part.name}.parquet"].corrupt
    ]
    if lines:
        folder.write(CORRUPT_FILE, "".join(lines).encode())


def _ingested(folder: Folder, manifest: Json, was_done: bool) -> Ingested:
    splits, files = manifest["splits"], files_of(manifest)
    return Ingested(
        uri=folder.uri,
        rows={name: split["rows"] for name, split in splits.items()},
        num_files=len(files),
        num_bytes=sum(file["bytes"] for file in files),
        num_corrupt=sum(split["corrupt"] for split in splits.values()),
        was_done=was_done,
    )
