import base64
import bz2
import gzip
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysl.cli.locate import find_config
from raysl.config.load import load_config
from raysl.data.source import Split
from raysl.data.sources.coco import COCO
from raysl.data.sources.file_list import FileList
from raysl.data.sources.subset import read_list
from raysl.data.sources.voc import VOC
from raysl.errors import ConfigError, StorageError
from raysl.storage import s3
from raysl.storage.addresses import join, open_uri
from raysl.storage.folder import Folder
from raysl.storage.whole import read_whole
from raysl.weights.weight_files import local_file, read_tree
from tests.bucket import Bucket
from tests.data.samples import png
from tests.data.sources import test_coco, test_voc

ZSTD = pa.Codec("zstd")
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: ZSTD.compress(content, asbytes=True),
}
Upload = Callable[[dict[str, bytes]], str]
"""Stores files and returns the address of their folder."""


class Website(BaseHTTPRequestHandler):
    """Files for who has the password; `moved/NAME` leads to `NAME`."""

    files: ClassVar[dict[str, bytes]] = {}
    statuses: ClassVar[list[int]] = []
    num_bytes: ClassVar[int | None] = None
    user = base64.b64encode("me:p@ss wörd".encode("latin-1")).decode()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name = unquote(self.path.partition("?")[0].removeprefix("/"))
        content = self.files.get(name.removeprefix("moved/"))
        status = self.statuses.pop(0) if self.statuses and self.command == "GET" else 200
        if self.headers["Authorization"] != f"Basic {self.user}":
            status = 401
        elif content is None:
            status = 404
        elif name.startswith("moved/"):
            status = 302
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"/{name.removeprefix('moved/')}")
        self.send_header("Content-Length", str(len(content or b"") if status == 200 else 0))
        self.end_headers()
        if self.command == "GET" and status == 200:
            self.wfile.write((content or b"")[: type(self).num_bytes])
            type(self).num_bytes = None

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    for name, value in (("files", {}), ("statuses", []), ("num_bytes", None)):
        monkeypatch.setattr(Website, name, value)
    server = HTTPServer(("127.0.0.1", 0), Website)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://me:p%40ss%20w%C3%B6rd@127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    pytest.importorskip("moto.server")
    pytest.importorskip("boto3")
    bucket = Bucket(tmp_path)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    yield bucket
    bucket.close()


def into_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def upload(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upload]:
    kind = request.param
    memory = fsspec.filesystem("memory")

    def store(files: dict[str, bytes]) -> str:
        if kind == "website":
            address = str(request.getfixturevalue("website"))
            Website.files.update(files)
            return address
        if kind == "bucket":
            uri = str(request.getfixturevalue("bucket").uri("my daten"))
            Folder(uri).make()
            system, path = open_uri(uri)
            bucket, _, folder = path.partition("/")
            for name, content in files.items():
                # pyarrow's client would compress what goes into a file of such a name
                s3.client_of(system).put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=content)
            return uri
        if kind == "memory":
            for name, content in files.items():
                memory.pipe(f"/raysl_whole/{name}", content)
            return "memory://raysl_whole"
        folder = tmp_path / ("süß 100% #1?" if kind == "path" else "süß 1")
        into_folder(folder, files)
        return str(folder) if kind == "path" else f"file://{folder}"

    yield store
    if memory.exists("/raysl_whole"):
        memory.rm("/raysl_whole", recursive=True)


REMOTE = [pytest.param(kind, marks=pytest.mark.cluster) for kind in ("website", "bucket")]
everywhere = pytest.mark.parametrize("upload", ["path", "file", "memory", *REMOTE], indirect=True)


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def npy(values: list[str]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values))
    return buffer.getvalue()


LISTS: dict[str, bytes] = {
    "l.csv": b"path,label\na.png,dog\nb.png,cat\n",
    "L.TSV": b"path\tlabel\na.png\tdog\nb.png\tcat\n",
    "l.txt": b"a.png\tdog\nb.png\tcat\n",
    "l.jsonl": b'{"path": "a.png", "label": "dog"}\n{"path": "b.png", "label": "cat"}\n',
    "l.PARQUET": parquet(path=["a.png", "b.png"], label=["dog", "cat"]),
    "l.pq": parquet(path=["a.png", "b.png"], label=["dog", "cat"]),
    "l.npy": npy(["a.png", "b.png"]),
}


@everywhere
def test_every_list_is_read_from_every_address_plain_and_compressed(upload: Upload, tmp_path: Path) -> None:
    into_folder(tmp_path / "images", {"a.png": png(1), "b.png": png(2)})
    files = {
        f"{name}{ending}": compress(content) for name, content in LISTS.items() for ending, compress in COMPRESS.items()
    }
    base = upload(files)
    for name in files:
        split: Split = FileList(FileList.Config(train=join(base, name), root=str(tmp_path / "images"))).required(
            "train"
        )
        assert split.read(np.arange(2)).images == [png(1), png(2)], name
        labels = [-1, -1] if name.lower().startswith("l.npy") else [1, 0]
        assert split.labels_of(np.arange(2)).tolist() == labels, name


@everywhere
def test_a_subset_is_read_from_every_address(upload: Upload) -> None:
    base = upload({"s.txt.gz": gzip.compress(b"a\n\nb\n"), "s.npy.zst": COMPRESS[".zst"](npy(["a", "b"]))})
    assert read_list(join(base, "s.txt.gz")) == read_list(join(base, "s.npy.zst")) == ["a", "b"]


@everywhere
def test_a_configuration_is_read_from_every_address(upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = join(upload({"mine.yaml": b"base: simclr\ntrain:\n  epochs: 7\n"}), "mine.yaml")
    config = load_config(uri, ["optim.lr=0.5"])
    assert (config.name, config.method.name, config.train.epochs) == ("mine", "simclr", 7)
    assert find_config(uri, [], "pretrain") == (uri, [])


def test_a_base_at_an_address_that_does_more_than_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: reference://::file:///a.yaml\n")
    with pytest.raises(
        ConfigError, match=r"mine.yaml: base: 'reference://::file:///a.yaml' chains clients with ::: of"
    ):
        load_config(str(tmp_path / "mine.yaml"))


@everywhere
def test_weights_are_read_from_every_address(upload: Upload) -> None:
    buffer = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.arange(3.0)}}, buffer)
    base = upload({"my w.pth": buffer.getvalue()})
    with local_file(join(base, "my w.pth")) as path:
        assert path.name == "my w.pth"
        assert read_tree(path)["state_dict"]["weight"].tolist() == [0.0, 1.0, 2.0]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("upload", ["path", "file", "memory", REMOTE[1]], indirect=True)
def test_annotations_are_read_from_every_address(upload: Upload, tmp_path: Path) -> None:
    coco, voc = test_coco.dataset(tmp_path / "coco"), test_voc.devkit(tmp_path / "voc", "trainval", "test")
    base = upload(files_below(coco) | files_below(voc))
    for remote, local in ((COCO(COCO.Config(path=base)), coco), (VOC(VOC.Config(path=base)), voc)):
        here = type(remote)(type(remote).Config(path=str(local)))
        for part in ("train", "test"):
            one, other = remote.required(part), here.required(part)
            index = np.arange(other.num_samples)
            assert one.classes == other.classes
            assert one.labels_of(index).tolist() == other.labels_of(index).tolist()
            assert one.read(index).images == other.read(index).images


@pytest.mark.cluster
def test_a_website_may_redirect_and_names_may_have_queries(website: str) -> None:
    Website.files["l.csv.gz"] = gzip.compress(b"path\n")
    assert read_whole(f"{website}/moved/l.csv.gz") == b"path\n"
    assert read_whole(f"{website}/l.csv.gz?version=2") == b"path\n"


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("statuses", "message"),
    [
        ([503, 429, 500, 408], None),
        ([503] * 5, r"cannot read 'http://.*/a.txt' after 5 tries: 503 Server Error.*; check the address"),
        ([403, 200], r"cannot read 'http://.*/a.txt': 403 Client Error"),
        ([410, 200], r"cannot read 'http://.*/a.txt': 410 Client Error"),
    ],
)
def test_a_website_is_asked_again_only_where_that_may_help(
    website: str, statuses: list[int], message: str | None
) -> None:
    Website.files["a.txt"] = b"a"
    Website.statuses.extend(statuses)
    if message is None:
        assert read_whole(f"{website}/a.txt") == b"a"
        return
    with pytest.raises(ConfigError, match=message) as raised:
        read_whole(f"{website}/a.txt")
    assert isinstance(raised.value, StorageError) == (statuses[0] == 503)
    assert len(Website.statuses) == len(statuses) - (5 if statuses[0] == 503 else 1)


@pytest.mark.cluster
def test_an_answer_that_ends_early_is_fetched_again(website: str) -> None:
    Website.files["a.txt"] = b"a" * 1000
    Website.num_bytes = 10
    assert read_whole(f"{website}/a.txt") == b"a" * 1000


@pytest.mark.cluster
def test_a_bucket_without_the_file_or_with_other_keys_says_so_at_once(bucket: Bucket) -> None:
    uri = bucket.uri("lists")
    Folder(uri).make()
    with pytest.raises(ConfigError, match=r"cannot read 's3://.*/gone.txt.*': .*NoSuchKey") as raised:
        read_whole(join(uri, "gone.txt"))
    assert not isinstance(raised.value, StorageError)
    assert bucket.log.read_text().count("GET /bucket/lists/gone.txt") == 1


@pytest.mark.cluster
def test_a_bucket_whose_server_is_down_is_tried_again(bucket: Bucket) -> None:
    uri = join(bucket.uri("lists"), "a.txt")
    Folder(bucket.uri("lists")).make()
    bucket.close()
    with pytest.raises(StorageError, match=r"cannot read 's3://.*/a.txt.*' after 5 tries: "):
        read_whole(uri)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_a_compressed_file_that_is_cut_off_or_something_else_is_named(tmp_path: Path, ending: str) -> None:
    whole = COMPRESS[ending](bytes(range(256)) * 20)
    for number, content in enumerate((whole[:-5], b"path,label\n")):
        path = tmp_path / f"{number}.csv{ending}"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"csv{ending} is not a whole {ending} file: .*; make or fetch it again"):
            read_whole(str(path))


def test_the_parts_of_a_compressed_file_are_all_read(tmp_path: Path) -> None:
    (tmp_path / "l.txt.gz").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert read_whole(str(tmp_path / "l.txt.gz")) == b"a\nb\n"


def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "l.txt")
    for name in ("l.txt", "gone.txt", "."):
        with pytest.raises(ConfigError, match=r"no file '.*'; give the address of a file"):
            read_whole(str(tmp_path / name))
    with pytest.raises(ConfigError, match=r"cannot read 'memory://raysl_gone/l.txt': "):
        read_whole("memory://raysl_gone/l.txt")


def test_a_name_that_is_no_utf_8_is_read(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    Path(path).write_bytes(b"a")
    assert read_whole(path) == b"a"


def test_a_records_file_of_annotations_that_is_damaged_is_named(tmp_path: Path) -> None:
    test_coco.dataset(tmp_path)
    path = tmp_path / "annotations/instances_train2017.json"
    path.write_text(json.dumps({"images": []})[:-1])
    with pytest.raises(ConfigError, match=r"instances_train2017.json is not a COCO annotation file"):
        COCO(COCO.Config(path=str(tmp_path))).required("train")
