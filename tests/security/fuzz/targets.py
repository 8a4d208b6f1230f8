"""The five things of raysl that read files of others: images, settings, checkpoints, sources, and runs and sweeps."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from pydicom.uid import RLELossless

from raysl.benchmarks.suite.results import Results
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import Kept, newest_whole
from raysl.checkpoint.lineage import read_parents
from raysl.config.dump import dump
from raysl.config.load import load_config, load_dumped
from raysl.data.assignments import Assignments, read_assignments
from raysl.data.dataset_note import DatasetNote
from raysl.data.decode.array_slices import find_array_slices
from raysl.data.decode.bands import Bands
from raysl.data.decode.decode import decode, image_size
from raysl.data.decode.dicom_frames import find_frames
from raysl.data.decode.gzipped import GZIP, inflated_head, read_inflated
from raysl.data.decode.jpeg import read_header
from raysl.data.decode.nifti import HEAD_BYTES, find_slices
from raysl.data.ingest.ingest import ingest_source
from raysl.data.source import Source
from raysl.data.sources.coco import COCO
from raysl.data.sources.file_list import FileList
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.voc import VOC
from raysl.data.sources.webdataset import WebDataset
from raysl.data.split import Missing
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.leaderboard_page import page as leaderboard_page
from raysl.plan.setup import Setup
from raysl.report.report_json import parse_report_json, report_json
from raysl.report.run_page import page as report_page
from raysl.runs.begin import claim_cpus
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events, read_nodes
from raysl.storage.folder import Folder
from raysl.sweeps.load import load_sweep
from raysl.train.callbacks.tracking import own_id
from raysl.train.costs import Costs
from raysl.train.file_names import parse_corrupt, parse_startup
from raysl.train.history import load_history
from raysl.train.state import TrainState
from raysl.tune.run_trainable import POINTER_FILE, Pointer
from raysl.tune.trial import Note
from tests.data.dicom import dataset, dicom, written
from tests.data.nifti import nifti, nifti_gz
from tests.data.samples import png
from tests.leaderboard.boards import asha
from tests.report.run import example
from tests.security.fuzz.harness import Target

SMALL = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")
Seeds = dict[str, list[bytes]]


# images


def _images(folder: Path) -> Seeds:
    draws = np.random.default_rng(0)
    pixels = Image.fromarray(draws.integers(0, 256, (12, 9, 3), dtype=np.uint8))
    ways: dict[str, list[tuple[Image.Image, dict[str, Any]]]] = {
        "JPEG": [
            (pixels, {}),
            (pixels, {"progressive": True}),
            (pixels.convert("L"), {}),
            (pixels.convert("CMYK"), {}),
        ],
        "PNG": [(pixels, {}), (pixels.convert("P"), {"transparency": 0}), (pixels.convert("RGBA"), {})],
        "GIF": [(pixels.convert("P"), {})],
        "BMP": [(pixels, {}), (pixels.convert("1"), {})],
        "WEBP": [(pixels, {}), (pixels, {"lossless": True})],
        "TIFF": [(pixels, {}), (pixels, {"compression": "tiff_lzw"}), (pixels, {"compression": "jpeg"})],
        "PPM": [(pixels, {})],
        "JPEG2000": [(pixels, {})],
    }
    seeds: Seeds = {}
    for form, pictures in ways.items():
        for picture, options in pictures:
            buffer = io.BytesIO()
            picture.save(buffer, form, **options)
            seeds.setdefault(form, []).append(buffer.getvalue())
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    pixels.save(buffer, "JPEG", exif=exif)
    seeds["JPEG"].append(buffer.getvalue())
    values = draws.integers(0, 4000, (3, 6, 8)).astype(np.int16)
    compressed = dataset(values[0], WindowCenter="40", WindowWidth="400")
    compressed.compress(RLELossless)
    seeds["DICOM"] = [dicom(values[0], RescaleSlope="2"), dicom(values), written(compressed)]
    volume = nifti(values.T, slope=0.5)
    seeds["NIfTI"] = [nifti(values[0], slope=0.5), volume, nifti(values.T, version=2), nifti_gz(values.T)]
    array = io.BytesIO()
    np.save(array, values)
    seeds["array"] = [array.getvalue()]
    return seeds


def _read_image(kind: str, content: bytes, folder: Path) -> None:
    if kind in ("NIfTI", "array"):
        _read_slice(kind, content)
        return
    read_header(content)
    image_size(content)
    if kind == "DICOM":
        frames = find_frames(io.BytesIO(content), len(content))
        if len(frames.offsets):
            first = int(frames.offsets[0])
            content = frames.as_file(0, content[first : first + int(frames.sizes[0])])
    decode(content)


def _read_slice(kind: str, content: bytes) -> None:
    """Read the last slice of a volume as a source does."""
    file, is_gzip = io.BytesIO(content), content[: len(GZIP)] == GZIP
    if kind == "array":
        slices = find_array_slices(file, len(content), 1)
    elif is_gzip:
        slices = find_slices(io.BytesIO(inflated_head(file, HEAD_BYTES)), None, is_gzip)
    else:
        slices = find_slices(file, len(content))
    if not len(slices.offsets):
        return
    part: bytes | Missing = content[int(slices.offsets[-1]) :][: int(slices.sizes[-1])]
    if is_gzip and int(slices.sizes[-1]) < 1 << 20:
        (part,) = read_inflated(io.BytesIO(content), slices.offsets[-1:], slices.sizes[-1:])
    decode(part if isinstance(part, Missing) else slices.as_file(slices.num - 1, part), bands=Bands(1, (0.0, 4000.0)))


# settings


def _settings(folder: Path) -> Seeds:
    stored = [dump(load_config(name)).encode() for name in ("quickstart", "dino_v2", "digits/moco")]
    own = b"base: quickstart\noptim: {lr: 0.1, name: lars}\ndata: {name: image_folder, path: /x}\nbenchmarks: [knn]\n"
    sweep = (
        b"config: quickstart\ntrials: 4\nseeds: 2\nmetric: knn/k20/top1\nmode: max\nbenchmarks: [knn]\nspace:\n"
        b"  optim.lr: {loguniform: [0.02, 0.5]}\n  method: {choice: [simclr, moco]}\n"
        b"  method.queue_size: {choice: [512], when: {method.name: moco}}\n"
    )
    return {"stored": stored, "own": [own, *stored], "sweep": [sweep]}


def _read_settings(kind: str, content: bytes, folder: Path) -> None:
    if kind == "stored":
        load_dumped(content.decode("utf-8", "replace"))
        return
    path = folder / "settings.yaml"
    path.write_bytes(content)
    if kind == "own":
        load_config(path)
    else:
        load_sweep(path)


# checkpoints

_CHECKPOINT: dict[str, bytes] = {}


def _checkpoints(folder: Path) -> Seeds:
    config = load_config("quickstart", SMALL)
    TrainState.create(Setup.of(config, 64, 10)).save(folder, {"loss": 1.0})
    _CHECKPOINT.update({file.name: file.read_bytes() for file in folder.iterdir()})
    seeds = {name: [content] for name, content in _CHECKPOINT.items()}
    return seeds | {f"{name} resealed": [content] for name, content in _CHECKPOINT.items() if name != "meta.json"}


def _read_checkpoint(kind: str, content: bytes, folder: Path) -> None:
    name, _, resealed = kind.partition(" ")
    checkpoint = folder / "checkpoint_000000001"
    checkpoint.mkdir()
    for file, good in (_CHECKPOINT | {name: content}).items():
        (checkpoint / file).write_bytes(good)
    if resealed:
        meta = json.loads(_CHECKPOINT["meta.json"])
        meta["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (checkpoint / "meta.json").write_text(json.dumps(meta))
    newest_whole(Folder(str(folder)))
    loaded = load_checkpoint(str(checkpoint))
    loaded.backbone(torch.zeros(1, 3, 16, 16))
    TrainState.create(Setup.of(load_config("quickstart", SMALL), 64, 10)).load(checkpoint)
    _ = loaded.data


# sources, with ingest

_INGESTED: dict[str, bytes] = {}


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(3):
            for ending, content in (("png", png(number)), ("cls", b"1"), ("json", b'{"label": 2}')):
                info = tarfile.TarInfo(f"{number:04d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _parquet() -> bytes:
    buffer = io.BytesIO()
    table = pa.table({"image": [png(1), png(2)], "label": [0, 1], "name": ["a", "b"]})
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _sources(folder: Path) -> Seeds:
    notes = {
        "images": [{"id": 1, "file_name": "1.png"}, {"id": 2, "file_name": "2.png"}],
        "annotations": [{"image_id": 1, "category_id": 3, "iscrowd": 0}, {"image_id": 2, "category_id": 4}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
    }
    _write_images(folder)
    ingest_source(ImageFolder.Config(name="image_folder", path=str(folder / "images")), str(folder / "out"))
    _INGESTED.update({file.name: file.read_bytes() for file in (folder / "out").iterdir() if file.is_file()})
    names = ("ingest.json", "manifest.json", next(name for name in _INGESTED if name.startswith("train-")))
    Assignments(torch.tensor([0, 1]), 2, "f", "c", ("a", "b")).write(str(folder / "clusters.parquet"))
    _write_tar(_tar(), folder / "tar")
    index = next(file for file in (folder / "tar").iterdir() if file.suffix != ".tar")
    return {
        "list.txt": [b"cat/1.png\ndog/2.png\n", b"cat/1.png 0\ndog/2.png 1\n"],
        "list.csv": [b"path,label\ncat/1.png,cat\ndog/2.png,dog\n"],
        "list.jsonl": [b'{"path": "cat/1.png", "label": 0}\n{"path": "dog/2.png", "label": 1}\n'],
        "tar": [_tar()],
        "index": [index.read_bytes()],
        "parquet": [_parquet()],
        "coco": [json.dumps(notes).encode()],
        "voc": [b"1 1\n2 -1\n"],
        "clusters": [(folder / "clusters.parquet").read_bytes()],
        **{f"ingested {name}": [_INGESTED[name]] for name in names},
    }


def _write_images(folder: Path) -> None:
    for name, number in (("cat", 1), ("dog", 2)):
        path = folder / "images" / "train" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def _write_tar(content: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train-000.tar").write_bytes(content)
    _use(WebDataset(WebDataset.Config(path=str(folder))), None)


def _use(source: Source, out: Path | None) -> None:
    """Read all images of a source, and store them as an ingest does."""
    split = source.required("train")
    rows = split.read(np.arange(min(split.num_samples, 8)))
    assert len(rows.images) == min(split.num_samples, 8)
    if out is not None:
        ingest_source(source.config, str(out))


def _read_source(kind: str, content: bytes, folder: Path) -> None:
    name, _, file = kind.partition(" ")
    readers: dict[str, Callable[[], object]] = {
        "tar": partial(_write_tar, content, folder / "tar"),
        "index": partial(_read_index, content, folder),
        "parquet": partial(_read_parquet, content, folder),
        "coco": partial(_read_coco, content, folder),
        "voc": partial(_read_voc, content, folder),
        "clusters": partial(_read_clusters, content, folder),
        "ingested": partial(_read_ingested, file, content, folder),
    }
    readers.get(name, partial(_read_list, name, content, folder))()


def _read_list(name: str, content: bytes, folder: Path) -> None:
    _write_images(folder)
    path = folder / "images" / "train" / name
    path.write_bytes(content)
    _use(FileList(FileList.Config(name="file_list", train=str(path))), folder / "out")


def _read_index(content: bytes, folder: Path) -> None:
    _write_tar(_tar(), folder / "tar")
    index = next(file for file in (folder / "tar").iterdir() if file.suffix != ".tar")
    index.write_bytes(content)
    _use(WebDataset(WebDataset.Config(path=str(folder / "tar"))), None)


def _read_parquet(content: bytes, folder: Path) -> None:
    root = folder / "images"
    root.mkdir()
    (root / "train-000.parquet").write_bytes(content)
    _use(Parquet(Parquet.Config(name="parquet", path=str(root))), folder / "out")


def _read_coco(content: bytes, folder: Path) -> None:
    root = folder / "images"
    (root / "annotations").mkdir(parents=True)
    (root / "train2017").mkdir()
    (root / "annotations" / "instances_train2017.json").write_bytes(content)
    for number in (1, 2):
        (root / "train2017" / f"{number}.png").write_bytes(png(number))
    _use(COCO(COCO.Config(name="coco", path=str(root))), folder / "out")


def _read_voc(content: bytes, folder: Path) -> None:
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (folder / "JPEGImages").mkdir()
    for number in (1, 2):
        (folder / "JPEGImages" / f"{number}.jpg").write_bytes(png(number))
    (lists / "trainval.txt").write_bytes(b"1\n2\n")
    (lists / "cat_trainval.txt").write_bytes(b"1 1\n2 -1\n")
    (lists / "dog_trainval.txt").write_bytes(content)
    _use(VOC(VOC.Config(name="voc", path=str(folder))), None)


def _read_clusters(content: bytes, folder: Path) -> None:
    path = folder / "clusters.parquet"
    path.write_bytes(content)
    read_assignments(str(path)).check(2, "f")


def _read_ingested(name: str, content: bytes, folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    for file, good in (_INGESTED | {name: content}).items():
        (out / file).write_bytes(good)
    _use(Parquet(Parquet.Config(name="parquet", path=str(out))), None)
    source = json.loads(_INGESTED["ingest.json"])["data"]["path"]
    ingest_source(ImageFolder.Config(name="image_folder", path=source), str(out))


# files of runs and sweeps


def _records(folder: Path) -> Seeds:
    note = Note("finished", 3, 2.5, {"a": 1.0}, {"a": (0.5, 1.5)}, {"a": "%"}, {"step_s": 0.1}, "", {"knn": ["x", "y"]})
    folder.mkdir(parents=True, exist_ok=True)
    note.write(Folder(str(folder)))
    weights = {"step": 3, "weights": "a", "settings": {"name": "knn"}, "seed": 0, "code": "c"}
    basis = {**weights, "train": "t", "test": "u", "image": {"size": 8}}
    score = {"benchmark": "knn", "metric": "top1", "trained": 90.0, "interval": [88.0, 91.0]}
    result = {"format": 3, "name": "knn", "basis": basis, "scores": [score], "figures": {}, "seconds": 1.5}
    line = b'{"step": 1, "epoch": 0.5, "loss": 2.5, "lr": 0.1}\n{"step": 2, "epoch": 1.0, "loss": NaN}\n'
    parent = {"run": "a", "step": 3, "epoch": 1.5, "path": "/runs/a"}
    dataset = {"fingerprint": "f", "num_samples": 9, "num_classes": 2, "epoch_len": 3, "content": {"train": "x"}}
    kept = {"rule": ["loss", "min"], "best": [["checkpoint_000000001", 1.5]], "always": ["checkpoint_000000001"]}
    return {
        "trial.json": [(folder / "trial.json").read_bytes()],
        "metrics.jsonl": [line],
        "events.jsonl": [b'{"time": 1.5, "event": "started", "nodes": ["10.0.0.1"]}\n{"event": "saved"}\n'],
        "corrupt.jsonl": [b'{"index": 3, "image": "a.jpg", "reason": "x"}\n'],
        "startup.json": [b'{"total": 3.5, "imports": 1.0}'],
        "trackers.json": [b'{"callbacks.wandb": "abc"}'],
        "kept.json": [json.dumps(kept).encode()],
        "lineage.json": [json.dumps([parent]).encode()],
        "dataset.json": [json.dumps(dataset).encode()],
        "cpus.json": [b'{"usable": 2, "free": 1}'],
        "costs.json": [b'{"seconds": 40.5, "gpu_hours": 0.5, "began": 1000.0}'],
        "leaderboard.json": [asha(4).json().encode()],
        "report.json": [report_json(example()).encode()],
        "result.json": [json.dumps(result).encode()],
        "pointer.json": [b'{"run": "/runs/a", "step": 3, "trial": "t", "settings": {"optim.lr": 0.1}}'],
    }


def _read_record(kind: str, content: bytes, folder: Path) -> None:
    (folder / kind).write_bytes(content)
    where, run = str(folder), RunFolder(str(folder))
    readers: dict[str, Callable[[], object]] = {
        "trial.json": partial(Note.read, run),
        "metrics.jsonl": partial(load_history, where),
        "events.jsonl": lambda: (read_events(run), read_nodes(run)),
        "corrupt.jsonl": partial(parse_corrupt, content),
        "startup.json": partial(parse_startup, content),
        "trackers.json": partial(own_id, folder, "callbacks.wandb"),
        "kept.json": lambda: Kept.read(run).best_in(run),
        "lineage.json": partial(read_parents, run),
        "dataset.json": partial(_compare_dataset, run),
        "cpus.json": lambda: claim_cpus(run, None),
        "costs.json": lambda: Costs.read(run).numbers(),
        "leaderboard.json": partial(_show_leaderboard, where),
        "report.json": lambda: report_page(parse_report_json(content, kind)),
        "result.json": partial(Results(run).load),
        "pointer.json": partial(_read_pointer, content, folder),
    }
    readers[kind]()


def _compare_dataset(run: RunFolder) -> None:
    note = DatasetNote.read(run)
    if note is not None:
        note.changes(DatasetNote("f", 9, 2, 3, {"train": "y"}))


def _show_leaderboard(where: str) -> None:
    board = Leaderboard.load(where)
    leaderboard_page(board)
    board.table()


def _read_pointer(content: bytes, folder: Path) -> None:
    (folder / POINTER_FILE).write_bytes(content)
    Pointer.read(str(folder))


TARGETS = {
    target.name: target
    for target in (
        Target("images", _images, _read_image),
        Target("settings", _settings, _read_settings),
        Target("checkpoints", _checkpoints, _read_checkpoint),
        Target("sources", _sources, _read_source),
        Target("records", _records, _read_record),
    )
}
"""The targets by name."""
