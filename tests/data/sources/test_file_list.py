import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from raysl.data.source import Missing, Split
from raysl.data.sources import file_list
from raysl.data.sources.file_list import FileList
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png, sent

FILES = ["b.png", "a.png", "c.png"]


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> Path:
    """Three images; b has shade 0, a 1 and c 2."""
    for shade, name in enumerate(FILES):
        (tmp_path / name).write_bytes(png(shade))
    return tmp_path


def write(path: Path, content: Any) -> str:
    if path.suffix == ".npy":
        np.save(path, content)
    else:
        path.write_text(content)
    return str(path)


def train(**settings: Any) -> Split:
    return FileList(FileList.Config(**settings)).required("train")


def content(split: Split) -> tuple[list[int], list[int]]:
    """Shades and labels."""
    rows = all_rows(split)
    return [[png(shade) for shade in range(3)].index(image) for image in rows.images], rows.labels.tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("l.txt", "b.png\na.png\nc.png\n", [-1, -1, -1]),
        ("l.txt", "\ufeffb.png 1\r\n\r\na.png 0\r\n./c.png -1\r\n", [1, 0, -1]),
        ("l.txt", "b.png\tred cat\na.png\tant\nc.png\tred cat", [1, 0, 1]),
        ("l.csv", 'path,extra,label\nb.png,x,dog\n"a.png",x,\nc.png,x,cat\n', [1, -1, 0]),
        ("l.csv", "path\nb.png\na.png\nc.png\n", [-1, -1, -1]),
        ("l.jsonl", '{"path": "b.png", "label": 2}\n{"label": 0, "path": "a.png"}\n{"path": "c.png"}\n', [2, 0, -1]),
        ("l.csv", 'path, label\n"b.png", dog\na.png, cat\nc.png,  dog \n', [1, 0, 1]),
        ("l.csv", "path,label\nb.png,1.0\na.png,0.0\nc.png,\n", [1, 0, -1]),
        (
            "l.jsonl",
            '{"path": "b.png", "label": 1.0}\n{"path": "a.png", "label": 0.0}\n{"path": "c.png"}\n',
            [1, 0, -1],
        ),
        ("l.npy", np.array(FILES), [-1, -1, -1]),
        ("l.npy", np.array(FILES).astype(bytes), [-1, -1, -1]),
    ],
)
def test_every_kind_of_list_is_read_in_its_order(images: Path, name: str, text: Any, labels: list[int]) -> None:
    split = train(train=write(images / name, text))
    assert content(split) == ([0, 1, 2], labels)
    assert all_rows(split).names == [str(images / file) for file in FILES]


def test_blanks_belong_to_the_path_unless_an_image_ends_before_them(images: Path) -> None:
    shutil.copy(images / "a.png", images / "my a.png")
    shutil.copy(images / "a.png", images / "a.png b.png")
    rows = all_rows(train(train=write(images / "l.txt", "my a.png\na.png b.png\n")))
    assert rows.names == [str(images / "my a.png"), str(images / "a.png b.png")]
    assert rows.labels.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("name", "labels", "expected", "classes"),
    [
        ("y.npy", np.array([1, 0, 2]), [1, 0, 2], ("0", "1", "2")),
        ("y.npy", np.array(["dog", "cat", "dog"]), [1, 0, 1], ("cat", "dog")),
        ("y.txt", "2\n0\n-1\n", [2, 0, -1], ("0", "1", "2")),
        ("y.txt", "dog\n-1\ncat\n", [1, -1, 0], ("cat", "dog")),
        ("y.csv", "label\n0\n1\n0\n", [0, 1, 0], ("0", "1")),
    ],
)
def test_labels_may_stand_in_a_list_of_their_own(
    images: Path, name: str, labels: Any, expected: list[int], classes: tuple[str, ...]
) -> None:
    split = train(train=write(images / "x.npy", np.array(FILES)), train_labels=write(images / name, labels))
    assert content(split) == ([0, 1, 2], expected)
    assert split.classes == classes


def test_an_array_of_several_labels_an_image_makes_a_multi_label_dataset(images: Path) -> None:
    labels = np.array([[1, 0], [0, -1], [1, 1]])
    files = write(images / "x.npy", np.array(FILES))
    source = FileList(
        FileList.Config(
            train=files, train_labels=write(images / "y.npy", labels), test=write(images / "t.txt", "c.png\n")
        )
    )
    split = source.required("train")
    assert split.is_multilabel
    assert split.classes == ("0", "1")
    assert sent(split).read(np.array([2, 1])).labels.tolist() == [[1, 1], [0, -1]]
    assert all_rows(source.required("test")).labels.tolist() == [[-1, -1]]
    with pytest.raises(ConfigError, match=r"t3.npy has labels of shape \[1, 3\], the training images of \[3, 2\]"):
        FileList(
            FileList.Config(
                train=files,
                train_labels=str(images / "y.npy"),
                test=str(images / "t.txt"),
                test_labels=write(images / "t3.npy", np.ones((1, 3), int)),
            )
        ).required("test")


def test_held_out_labels_are_numbered_by_the_training_images(images: Path) -> None:
    def held_out(test: str, train_list: str = "b.png dog\na.png cat\n") -> Split:
        config = FileList.Config(train=write(images / "train.txt", train_list), test=write(images / "test.txt", test))
        return FileList(config).required("test")

    assert content(held_out("c.png dog\n")) == ([2], [1])
    assert held_out("c.png dog\n").classes == ("cat", "dog")
    assert content(held_out("c.png\n")) == ([2], [-1])
    with pytest.raises(
        ConfigError, match=r"test.txt has labels that no training image has: 'cow', 'owl'; use the same names"
    ):
        held_out("c.png owl\na.png cow\nb.png cat\n")
    with pytest.raises(ConfigError, match=r"test.txt has labels that no training image has: '1'"):
        held_out("c.png 1\n")
    with pytest.raises(ConfigError, match=r"test.txt has labels that no training image has: 2; number the classes"):
        held_out("c.png 2\n", "b.png 0\na.png 1\n")
    with pytest.raises(ConfigError, match=r"test.txt has labels that no training image has: 'cat'"):
        held_out("c.png cat\n", "b.png\na.png\n")


@pytest.mark.parametrize(("train", "test"), [([1, 2, 3], [0, 1, 2]), ([0, 1, 2], [1, 2, 3]), ([0, 2], [0, 1])])
def test_held_out_numbers_that_no_training_image_has_are_refused_as_names_are(
    images: Path, train: list[int], test: list[int]
) -> None:
    lists = {
        part: write(images / f"{part}.txt", "".join(f"{'abc'[row]}.png {label}\n" for row, label in enumerate(labels)))
        for part, labels in (("train", train), ("test", test))
    }
    with pytest.raises(ConfigError, match=r"test.txt has labels that no training image has: \d; number the classes"):
        FileList(FileList.Config(**lists)).required("test")


def test_paths_are_below_the_root_or_elsewhere(images: Path) -> None:
    lists = images / "lists"
    lists.mkdir()
    memory = fsspec.filesystem("memory")
    memory.pipe("/far/away/z.png", png(2))
    text = f"b.png\n{images}/a.png\nmemory://far/away/z.png\nfile://{images}/c.png\n"
    try:
        split = train(train=write(lists / "l.txt", text), root=str(images))
        assert content(split)[0] == [0, 1, 2, 2]
    finally:
        memory.rm("/far", recursive=True)


def test_prefixes_are_replaced_where_paths_begin_with_them(images: Path) -> None:
    file = write(images / "l.txt", "/old/b.png\n/other/old/a.png\n")
    config = {"/old": str(images), "/other/old/": f"{images}/"}
    assert content(train(train=file, replace_prefix=config))[0] == [0, 1]
    with pytest.raises(
        ConfigError, match=r"no file '/old/b.png', which .*l.txt lists; set data.root= or data.replace_p"
    ):
        train(train=file)


def test_an_image_that_vanished_is_missing_and_the_others_are_read(images: Path) -> None:
    split = train(train=write(images / "l.txt", "b.png\na.png\nc.png\n"))
    (images / "a.png").unlink()
    rows = all_rows(split)
    assert rows.images == [png(0), Missing("file not found"), png(2)]
    assert rows.names[1] == str(images / "a.png")


@pytest.mark.parametrize(
    ("files", "labels", "message"),
    [
        ("b.png\na.png red cat\n", None, r"l.txt, line 2: a label that contains blanks must follow a tab"),
        (
            "b.png\na.png\nx/../b.png\n",
            None,
            r"l.txt lists 1 images more than once, first '.*/x/../b.png'; remove",
        ),
        ("b.png\na.png\n", "0\n", r"y.txt lists 1 labels for the 2 images of .*l.txt; give one each"),
        ("b.png\n", "0\n1\n", r"y.txt lists 2 labels for the 1 images"),
        (
            "b.png\na.png\nb.png\nb.png\n",
            None,
            r"l.txt lists 2 images more than once, first '.*/b.png'; .*allow_duplicates=true",
        ),
        ("\n\n", None, r"l.txt lists no images"),
        ("b.png 1\na.png\n", None, r"l.txt, line 2: no label, but other lines have one; write -1 for unlabelled"),
        ("b.png -2\n", None, r"l.txt has the label -2; labels are 0, 1, ..., and -1 is unlabelled"),
        ("b.png 99999999999999999999\n", None, r"l.txt has the label 99999999999999999999; the largest is 10,000,000"),
        (
            "b.png 30000000\n",
            None,
            r"l.txt has the label 30000000; the largest is 10,000,000: are these ids\? set data",
        ),
    ],
)
def test_lists_that_are_no_dataset_are_refused(images: Path, files: str, labels: str | None, message: str) -> None:
    settings = {} if labels is None else {"train_labels": write(images / "y.txt", labels)}
    with pytest.raises(ConfigError, match=message):
        train(train=write(images / "l.txt", files), **settings)


def test_duplicates_can_be_allowed(images: Path) -> None:
    assert content(train(train=write(images / "l.txt", "b.png\nb.png\n"), allow_duplicates=True))[0] == [0, 0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("l.npy", np.array(["b.png", 1], dtype=object), r"cannot read .*l.npy as an array: .*; save .*np.array\(texts"),
        ("l.npy", np.array([1, 2]), r"l.npy holds int64 of shape \[2\], not a list of paths"),
        ("l.npy", np.array([0.5]), r"l.npy holds float64, not integers or texts"),
        ("l.csv", "file\nb.png\n", r"l.csv has no column 'path'; its columns: file; set data.path_column="),
        ("l.csv", "path,label\nb.png,1\n,2\n", r"l.csv, line 3: no text 'path'; set data.path_column="),
        ("l.csv", "path,path\nb.png,a.png\n", r"l.csv has 2 columns 'path'; give each its own name"),
        ("l.jsonl", '{"path": "b.png"}\n{"path"\n', r"l.jsonl, line 2: not JSON: "),
        ("l.jsonl", '["b.png"]\n', r"l.jsonl, line 1: .* is not an object"),
        ("l.jsonl", '{"path": "b.png", "label": 0.5}\n', r"l.jsonl, line 1: the label 0.5 is no whole number"),
        (
            "l.list",
            "b.png\n",
            r"l.list is not a list; the name of a list ends in .npy, .txt, .csv, .tsv, .jsonl, .parquet",
        ),
    ],
)
def test_files_that_are_no_lists_are_named(images: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(train=write(images / name, value))


def test_text_that_is_not_utf_8_is_told(images: Path) -> None:
    (images / "l.txt").write_bytes(b"caf\xe9.png\n")
    with pytest.raises(ConfigError, match=r"l.txt is not a UTF-8 text: .* at byte 3"):
        train(train=str(images / "l.txt"))


def test_a_pickle_in_an_array_is_never_loaded(images: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (images / "sprung",))

    np.save(images / "l.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot read"):
        train(train=str(images / "l.npy"))
    assert not (images / "sprung").exists()


def test_absent_lists_are_told(images: Path) -> None:
    with pytest.raises(ConfigError, match=r"file_list needs data.train="):
        train()
    with pytest.raises(ConfigError, match=r"no file '.*/gone.txt'"):
        train(train=str(images / "gone.txt"))
    assert FileList(FileList.Config(train=write(images / "l.txt", "b.png"))).optional("test") is None


def test_other_labels_have_another_fingerprint(images: Path) -> None:
    prints = {
        train(train=write(images / f"l{number}.txt", text)).fingerprint
        for number, text in enumerate(["b.png 0\na.png 1\n", "b.png 1\na.png 1\n", "a.png 0\nb.png 1\n"])
    }
    assert len(prints) == 3


def test_what_is_in_the_images_is_not_in_the_fingerprint(images: Path) -> None:
    settings = {"train": write(images / "l.txt", "b.png 0\n")}
    before = train(**settings).fingerprint
    (images / "b.png").write_bytes(b"other")
    assert train(**settings).fingerprint == before


def test_the_query_of_a_root_or_of_a_list_is_that_of_its_images(images: Path) -> None:
    listed = write(images / "l.txt", "b.png 0\na.png 1\n")
    plain = all_rows(train(train=listed))
    for settings in ({"train": f"file://{listed}?mode=1"}, {"train": listed, "root": f"file://{images}/?mode=1"}):
        rows = all_rows(train(**settings))
        assert (rows.images, rows.names[0]) == (plain.images, f"file://{images}/b.png?mode=1")


@pytest.mark.parametrize("query", ["", "?mode=1"])
def test_a_question_mark_in_the_name_of_an_image_begins_no_query(images: Path, query: str) -> None:
    (images / "b").write_bytes(png(0))
    for shade, name in enumerate(("b?s=1.png", "x/a?mode=1", "%3F.png")):
        (images / name).parent.mkdir(exist_ok=True)
        (images / name).write_bytes(png(shade))
    listed = write(images / "l.npy", np.array(["b?s=1.png", "x/a?mode=1", "%3F.png"]))
    for root in (f"file://{images}", f"file://{images}/"):
        split = train(train=listed, root=f"{root}{query}")
        assert content(split)[0] == [0, 1, 2]
        assert Path(all_rows(split).names[0]).name == "b?s=1.png"
    old = write(images / "old.npy", np.array([f"/old/{name}" for name in ("b?s=1.png", "x/a?mode=1", "%3F.png")]))
    for prefix in ({"/old": f"file://{images}"}, {"/old/": f"file://{images}/"}, {"/old": str(images)}):
        assert content(train(train=old, replace_prefix=prefix))[0] == [0, 1, 2]


def test_the_name_of_an_image_sets_no_parameter_of_a_storage(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_uri = file_list.open_uri
    monkeypatch.setattr(file_list, "open_uri", lambda uri: opened.append(uri) or open_uri(uri))
    listed = write(images / "l.npy", np.array(["b.png", "c.png?mode=1"]))
    (images / "c.png?mode=1").write_bytes(png(2))
    assert content(train(train=listed, root=f"file://{images}"))[0] == [0, 2]
    old = write(images / "old.npy", np.array(["/old/b.png", "/old/c.png?mode=1"]))
    assert content(train(train=old, replace_prefix={"/old": f"file://{images}"}))[0] == [0, 2]
    assert opened
    assert not [uri for uri in opened if "?" in uri]


def test_columns_have_names_of_your_choice(images: Path) -> None:
    lines = [json.dumps({"file": name, "kind": kind}) for name, kind in zip(FILES, "xyx", strict=True)]
    split = train(train=write(images / "l.jsonl", "\n".join(lines)), path_column="file", label_column="kind")
    assert content(split) == ([0, 1, 2], [0, 1, 0])


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl"])
def test_a_column_of_labels_that_is_named_must_be_there(images: Path, name: str) -> None:
    text = "path,kind\nb.png,x\n" if name == "l.csv" else '{"path": "b.png", "kind": "x"}\n'
    file = write(images / name, text)
    with pytest.raises(
        ConfigError, match=rf"{name} has no column 'class'; its columns: path, kind; set data.label_column"
    ):
        train(train=file, label_column="class")
    assert train(train=file).classes == (), "the default may be absent"
    assert train(train=file, label_column="kind").classes == ("x",)
    assert train(train=write(images / "y.csv", "path,label\nb.png,x\n"), label_column=None).classes == ()
    with pytest.raises(
        ConfigError, match=rf"{name} has no column 'label'; its columns: path, kind; set data.label_col"
    ):
        train(train=write(images / "x.txt", "b.png\n"), train_labels=file)
    with pytest.raises(ConfigError, match=r"data.test_labels= are labels of data.test=.*; give it too"):
        FileList(FileList.Config(train=file, test_labels=file)).optional("test")


def test_a_row_that_is_a_folder_or_may_not_be_read_is_a_missing_image(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "folder.png").mkdir()
    split = train(train=write(images / "l.txt", "b.png\nfolder.png\na.png\nb.png/x.png\n"))
    found = split.read(np.arange(4)).images
    assert found == [png(0), Missing("a folder, not a file"), png(1), Missing("file not found")]

    def deny(path: str, most: int | None) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("raysl.storage.reads._read_local", deny)  # tests may run as a user who may read everything
    assert split.read(np.array([0])).images == [Missing("no right to read the file")]


def test_a_listed_name_may_be_no_utf_8(images: Path) -> None:
    odd = os.fsencode(images) + b"/caf\xe9.png"
    Path(os.fsdecode(odd)).write_bytes(png(2))
    for names in ([b"b.png", b"caf\xe9.png"], [b"caf\xe9.png"]):
        rows = all_rows(train(train=write(images / "l.npy", np.array(names))))
        assert (rows.images[-1], rows.names[-1]) == (png(2), f"{images}/caf\\xe9.png")


class Website(BaseHTTPRequestHandler):
    """Answers with the path that it was asked for; not found where this begins with gone."""

    def do_HEAD(self) -> None:
        self._head(len(self.path))

    def do_GET(self) -> None:
        self._head(len(self.path))
        self.wfile.write(self.path.encode())

    def _head(self, size: int) -> None:
        self.send_response(404 if self.path.startswith("/gone") else 200)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Website)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.cluster
def test_marks_in_the_names_of_a_website_are_of_the_names(images: Path, website: str) -> None:
    listed = write(images / "l.txt", f"a?b#1.png\nplain.png\na%20b.png\n{website}/whole%20.png?size=4\n")
    found = train(train=listed, root=website).read(np.arange(4)).images
    assert found == [b"/a%3Fb%231.png", b"/plain.png", b"/a%2520b.png", b"/whole%20.png?size=4"]


@pytest.mark.cluster
def test_a_website_that_does_not_answer_is_no_missing_file(
    images: Path, website: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    listed = write(images / "l.txt", "gone.png\n")
    with pytest.raises(ConfigError, match=r"no file 'http://127.*/gone.png', which .*l.txt lists; set data.root="):
        train(train=listed, root=website)
    down = f"http://127.0.0.1:{closed_port()}"
    for settings in ({"train": listed, "root": down}, {"train": f"{down}/l.txt"}):
        with pytest.raises(ConfigError, match=rf"cannot read '{down}/.*' after 5 tries: .*; check the address"):
            train(**settings)
        assert "trying again, 4 times at most" in caplog.text
        caplog.clear()


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
