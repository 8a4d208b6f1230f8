"""Ingesting: any dataset becomes a folder of Parquet files that `data=parquet` streams.

The folder holds `train-00000-of-00012.parquet`, `test-...` with the columns `index` (in the source's split), `image`
(an encoded file), `label` and `name`; `ingest.json`, the settings; `corrupt.jsonl`, a line for each image that cannot
be decoded and is left out; and, written last, `manifest.json`, the list of files. An interrupted ingest continues when
it is started again: files that are complete, by their checksums, are kept.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial

from pyarrow import fs
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from raysl.components import resolve
from raysl.config.dump import plain
from raysl.config.ranges import check_ranges
from raysl.config.schema import DataConfig
from raysl.data.ingest.folder import (
    CORRUPT_FILE,
    FILE_KINDS,
    FORMAT,
    MANIFEST_FILE,
    Json,
    claim,
    files_of,
    first_damaged,
    read_manifest,
    to_json,
)
from raysl.data.ingest.parts import Spread, cut_parts, in_process, open_splits, warn_of_notes
from raysl.data.ingest.shard import RECORDS, Layout, Shard, write_shard
from raysl.data.source import Split
from raysl.data.sources.parquet_columns import fingerprint_line
from raysl.data.sources.parquet_labels import join_digests
from raysl.errors import ConfigError, RunFailed
from raysl.hashing import digest_each
from raysl.redact import bare_tree
from raysl.storage.folder import PART, Folder
from raysl.storage.reads import REMOTE_READS

LEFT_BEHIND_S = 600.0  # an unfinished file that has not grown for so long belongs to an interrupted ingest
CHOICE = ("name", "limit", "balanced", "skip", "subset", "label_type")  # common settings that choose images and labels


@dataclass(frozen=True)
class Ingested:
    """Summary of an ingested dataset.

    Args:
        num_corrupt: images that were left out because they cannot be decoded.
        was_done: whether an earlier ingest had finished it.
    """

    uri: str
    rows: Mapping[str, int]
    num_files: int
    num_bytes: int
    num_corrupt: int
    was_done: bool


def ingest_source(data: DataConfig, out: str, layout: Layout | None = None, spread: Spread = in_process) -> Ingested:
    """Store all images of a dataset as Parquet files; files that exist from an interrupted ingest are kept.

    Args:
        out: local path or URI of a new folder, or of one that the same call began to fill.
        layout: how images are stored; default: unchanged, 10,000 to a file, training images in a random order.
        spread: `in_process`, or `raysl.data.ingest.on_ray.on_ray`, which uses a cluster.

    Raises:
        ConfigError: if a setting is out of its range, the images or the folder cannot be read or written, or the folder
            holds other files.
        RunFailed: if no image of a split can be decoded, or the storage keeps failing.
    """
    layout = layout or Layout()
    check_ranges(layout)
    folder = Folder(out)
    if layout.resize is not None and isinstance(data.channels, int):
        raise ConfigError(
            f"resize: it makes JPEG files of red, green and blue, and data.channels={data.channels}; leave it out"
        )
    splits = open_splits(resolve("source", data.name)(data))
    if any(split.mix for split in splits.values()):
        raise ConfigError(
            "data.weights counts for training, and stored files have each image once; leave it out, or ingest each "
            "source into a folder of its own and mix these"
        )
    warn_of_notes(splits.values())
    plan = _plan(data, splits, layout)
    claim(folder, plan, data)
    if (manifest := read_finished(folder, plan)) is not None:
        sweep(folder)
        return summarize(folder, manifest, was_done=True)
    parts = cut_parts(splits, layout.rows_per_file)
    folder.child(RECORDS).make()
    sizes = {f"{part.name}.parquet": part.end - part.first for part in parts}
    shards: dict[str, Shard] = {}
    with progress("images", sum(sizes.values())) as advance:
        for shard in spread(partial(write_shard, folder.uri, layout), splits, parts):
            shards[shard.name] = shard
            advance(sizes[shard.name])
    # files may be finished in any order, and the manifest must not depend on it
    in_order = {name: [shards[f"{part.name}.parquet"] for part in parts if part.split == name] for name in splits}
    entries = {
        name: split_entry(name, in_order[name], split.num_samples, split.classes, split.is_multilabel)
        for name, split in splits.items()
    }
    corrupt = {name: [row for shard in in_order[name] for row in shard.corrupt] for name in splits}
    return finish(folder, plan | {"splits": entries}, corrupt)


def finish(folder: Folder, manifest: Json, corrupt: Mapping[str, Sequence[tuple[int, str, str]]]) -> Ingested:
    """Write the list of corrupt images and, last, the manifest.

    Args:
        corrupt: index, name and reason of each image that was left out, by split.
    """
    lines = [
        json.dumps({"split": split, "index": index, "name": name, "reason": reason}) + "\n"
        for split, rows in corrupt.items()
        for index, name, reason in sorted(map(tuple, rows))
    ]
    if lines:
        folder.write(CORRUPT_FILE, "".join(lines).encode())
    sweep(folder)
    folder.write(MANIFEST_FILE, to_json(manifest))
    return summarize(folder, manifest, was_done=False)


def verify(out: str) -> dict[str, str]:
    """Compare every byte of a finished ingest with its manifest.

    Returns:
        What is wrong with each damaged file, by its name; empty if none is.
    """
    folder = Folder(out)
    files = files_of(read_manifest(folder.system, folder.path))
    damaged: dict[str, str] = {}
    with progress("files", len(files)) as advance, ThreadPoolExecutor(REMOTE_READS) as pool:
        for file, problem in zip(files, pool.map(partial(_find_problem, folder), files), strict=True):
            advance(1)
            if problem is not None:
                damaged[file["name"]] = problem
    return damaged


def _find_problem(folder: Folder, file: Json) -> str | None:
    num_bytes = folder.size(file["name"])
    if num_bytes is None:
        return "it is missing"
    if num_bytes != file["bytes"]:
        return f"{num_bytes:,} bytes, not the {file['bytes']:,} that were written"
    return None if folder.sha256(file["name"]) == file["sha256"] else "its bytes differ from those written"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yield the function that advances it."""
    text = f"{{task.completed:,}}{'' if total is None else f'/{total:,}'} {what}"
    bar = Progress(TextColumn(text), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    task = bar.add_task(what, total=total)
    with bar if bar.console.is_terminal else nullcontext():  # elsewhere it would end with an empty line
        yield lambda number: bar.advance(task, number)


def _plan(data: DataConfig, splits: Mapping[str, Split], layout: Layout) -> Json:
    """Return all that determines the content of the files, in JSON types: no pipeline settings, no credentials."""
    common = {field.name for field in dataclasses.fields(DataConfig)} - set(CHOICE)
    settings = {name: value for name, value in bare_tree(plain(data)).items() if name not in common}
    sources = {
        name: {"fingerprint": split.fingerprint, "rows": split.num_samples, "content": dict(split.content())}
        for name, split in splits.items()
    }
    tree = {"format": FORMAT, "data": settings, "source": sources, "layout": asdict(layout)}
    if layout.resize is not None:  # otherwise files keep their transparency, and their reader chooses the background
        tree["background"] = data.background
    # as it will be read back, with lists in place of tuples, so that the two compare equal
    plan: Json = json.loads(json.dumps(tree))
    return plan


def read_finished(folder: Folder, plan: Json) -> Json | None:
    """Return the manifest if all the files that it lists have their sizes and footers; else None."""
    if not folder.exists(MANIFEST_FILE):
        return None
    manifest = read_manifest(folder.system, folder.path)
    files = files_of(manifest)
    names = [file["name"] for file in files]
    infos = folder.system.get_file_info([f"{folder.path}/{name}" for name in names])
    sizes = {name: info.size for name, info in zip(names, infos, strict=True)}
    is_whole = first_damaged(folder.system, folder.path, files, sizes, set(names)) is None
    return manifest if is_whole and manifest.items() >= plan.items() else None


def sweep(folder: Folder) -> None:
    """Remove unfinished files of interrupted ingests; those of another ingest at work here are newer."""
    for inner in (folder, folder.child(RECORDS)):
        for entry in inner.entries():
            is_part = entry.type == fs.FileType.File and entry.base_name.endswith(PART)
            if is_part and entry.mtime is not None and time.time() - entry.mtime.timestamp() > LEFT_BEHIND_S:
                inner.remove(entry.base_name)


def split_entry(
    name: str,
    shards: Sequence[Shard],
    num_samples: int,
    classes: Sequence[str],
    is_multilabel: bool = False,
    has_names: bool = False,
) -> Json:
    """Return the manifest's entry for a split.

    Args:
        num_samples: images before any was left out.

    Raises:
        RunFailed: if all images were left out.
    """
    rows = sum(shard.rows for shard in shards)
    ordered = sorted(shards, key=lambda shard: shard.name)  # as `data=parquet` reads them
    lines = (fingerprint_line(shard.name, [*zip(shard.groups, shard.group_bytes, strict=True)]) for shard in ordered)
    if rows == 0:
        index, where, reason = shards[0].corrupt[0]
        raise RunFailed(f"none of the {num_samples:,} {name} images can be decoded; {index} is {where}: {reason}")
    return {
        "rows": rows,
        "corrupt": num_samples - rows,
        "classes": list(classes),
        "is_multilabel": is_multilabel,
        "has_names": has_names,
        "fingerprint": digest_each(lines),
        "labels_digest": join_digests(bytes.fromhex(shard.labels_digest) for shard in ordered),
        "column_bytes": sum(sum(shard.group_bytes) for shard in ordered),
        "files": [{key: value for key, value in asdict(shard).items() if key in FILE_KINDS} for shard in shards],
    }


def summarize(folder: Folder, manifest: Json, was_done: bool) -> Ingested:
    """Return the summary of a manifest."""
    splits, files = manifest["splits"], files_of(manifest)
    return Ingested(
        uri=folder.uri,
        rows={name: split.get("rows", 0) for name, split in splits.items()},
        num_files=len(files),
        num_bytes=sum(file["bytes"] for file in files),
        num_corrupt=sum(split.get("corrupt", 0) for split in splits.values()),
        was_done=was_done,
    )
