"""What lies at a path or URI that a user gives where a name was expected: images, a run, a sweep, weights.

The names of backbones that come with raysl look like paths, and are known here too.
"""

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from raysl.config.config_files import expand
from raysl.errors import ConfigError
from raysl.trained import is_trained

Kind = Literal["images", "run", "checkpoint", "trained", "sweep", "weights", "nothing"]

ENDINGS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "JPEG2000": ("jp2", "j2k", "jpx"),
    "DICOM": ("dcm", "dicom"),
    "NIfTI": ("nii", "nii.gz"),
}
"""File endings of the formats that raysl reads, by Pillow's names of the formats, and two that pydicom and nibabel
read."""

IMAGES = tuple(dict.fromkeys(ending for endings in ENDINGS.values() for ending in endings))
EXTENSIONS = tuple(f".{ending}" for ending in IMAGES)
ARRAYS = ("npy", "npz")
"""File endings of arrays, which are images where `data.channels` is a number."""
WEIGHTS = (".pth", ".pt", ".pth.tar", ".safetensors", ".ckpt", ".torch", ".bin", ".pkl")
SOURCES = {".parquet": "parquet", ".pq": "parquet", ".tar": "webdataset"}
LISTS = (".csv", ".tsv", ".txt", ".jsonl")
HIDDEN = (
    "@eadir", "#recycle", "$recycle.bin", "__macosx", "lost+found", "system volume information", "thumbs.db",
    "desktop.ini",
)  # fmt: skip
"""Names of files and folders that systems leave among images, in small letters; they hold no images of a dataset."""
MOST_NAMES = 5_000
"""Names below a folder that are looked at to see what it holds."""


_HIDDEN = re.compile(rf"(?:^|/)(?:\.[^/]|(?:{'|'.join(map(re.escape, HIDDEN))})(?:/|$))", re.IGNORECASE)


def is_hidden(path: str) -> bool:
    """Whether a path has a name that begins with a dot or is one of HIDDEN.

    >>> [is_hidden(path) for path in ("cat/1.png", "cat/._1.png", "__MACOSX/cat/1.png", "@eaDir")]
    [False, True, True, True]
    """
    return _HIDDEN.search(path) is not None


def is_place(word: str) -> bool:
    """Whether a word is a path or a URI, not a name, `module:Class` or `path/to/file.py:Class`.

    >>> is_place("s3://bucket/images"), is_place("./images"), is_place("simclr"), is_place("mine/net.py:Net")
    (True, True, False, False)
    """
    if "://" in word:
        return True
    if re.search(r"(\.py|^[\w.]+):\w+$", word):
        return False
    return re.search(r"[/\\]|^[~$]", word) is not None or os.path.lexists(word)


def kind_of(uri: str) -> Kind:
    """Return what is at a local path; a URI is asked for nothing, and is `images` unless its name says otherwise."""
    if is_trained(uri):
        return "trained"
    if uri.lower().endswith(WEIGHTS) and not os.path.isdir(expand(uri)):
        return "weights"
    if "://" in uri:
        return "images"
    path = Path(expand(uri))
    if not path.is_dir():
        return "images" if path.exists() else "nothing"
    for name, kind in _MARKS.items():
        if (path / name).exists():
            return kind
    return "run" if any(name.startswith("checkpoint_") for name in os.listdir(path)) else "images"


SWEEP_FILE = "sweep.yaml"
"""The settings of a sweep, in its folder."""
_MARKS: dict[str, Kind] = {"meta.json": "checkpoint", SWEEP_FILE: "sweep", "run.yaml": "run"}


def data_setting(uri: str) -> str:
    """Return the setting that names images at a path or URI, in YAML's quotes.

    >>> data_setting("my images")
    'data="my images"'
    """
    return f"data={json.dumps(uri)}"


def source_at(uri: str) -> dict[str, Any]:
    """Return the settings of the source that reads the images at a path or URI: `{"name": "parquet", "path": ...}`.

    Parquet files and tars are known by their names, a list of images by its ending; all else is a folder of images.
    """
    from raysl.storage.addresses import split_query
    from raysl.storage.whole import plain_name

    kind = kind_of(uri)
    if kind == "nothing":
        raise ConfigError(f"{uri!r}: nothing is there; give a folder of images, a Parquet file, a tar or a list")
    if kind != "images":
        raise ConfigError(f"{uri!r} is {_NOUNS[kind]}, not images; give a folder of images, a Parquet file or a tar")
    if plain_name(uri).endswith(LISTS):
        return {"name": "file_list", "train": uri}
    suffix = os.path.splitext(split_query(uri)[0])[1].lower()
    name = SOURCES.get(suffix) or next((_source_of(name) for name in _names(uri) if _source_of(name)), None)
    return {"name": name or "image_folder", "path": uri}


def has_images(uri: str) -> bool:
    """Whether files of images, Parquet files or tars are at a path, by their names."""
    return any(_source_of(name) for name in (uri, *_names(uri)))


_NOUNS = {
    "run": "a run",
    "checkpoint": "a checkpoint",
    "trained": "a trained backbone of raysl",
    "sweep": "a sweep",
    "weights": "a file of weights",
}


def _source_of(name: str) -> str | None:
    is_image = name.lower().endswith(EXTENSIONS)
    return "image_folder" if is_image else SOURCES.get(os.path.splitext(name)[1].lower())


def _names(uri: str) -> Iterator[str]:
    """Yield names of files below a folder, those near its top first, of a bounded number of entries."""
    return islice(_remote_names(uri) if "://" in uri else _local_names(expand(uri)), MOST_NAMES)


def _local_names(path: str) -> Iterator[str]:
    waiting = deque([path])
    for _ in range(MOST_NAMES):
        if not waiting:
            return
        try:
            with os.scandir(waiting.popleft()) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir():
                        waiting.append(entry.path)
                    else:
                        yield entry.name
        except OSError:  # one that cannot be read is left to the source, which says so
            continue


def _remote_names(uri: str) -> Iterator[str]:
    from pyarrow import fs

    from raysl.storage.addresses import open_uri, storage_errors

    system, path = open_uri(uri)
    waiting = deque([path])
    for _ in range(10):  # a request each
        if not waiting:
            return
        with storage_errors("list", uri):
            listed = system.get_file_info(fs.FileSelector(waiting.popleft(), allow_not_found=True))
        infos = [info for info in listed if not is_hidden(info.base_name)]
        waiting.extend(info.path for info in infos if info.type == fs.FileType.Directory)
        yield from (info.base_name for info in infos if info.type == fs.FileType.File)
