import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from pyarrow import fs

from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed
from raysl.runs.folder import RunFolder
from raysl.storage.addresses import absolute, cut, join, open_uri, stat_uri, storage_errors
from raysl.storage.folder import Folder
from raysl.storage.reads import read_file, read_ranges, retrying


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder on disk and one behind a URI that only fsspec knows."""
    if request.param == "local":
        yield str(tmp_path / "runs")
        return
    yield "memory://raysl_runs"
    memory = fsspec.filesystem("memory")
    if memory.exists("/raysl_runs"):
        memory.rm("/raysl_runs", recursive=True)


@pytest.fixture
def config(place: str) -> RunConfig:
    return replace(load_config("quickstart"), storage=place, name="one")


def test_a_folder_is_the_same_on_disk_and_behind_a_uri(place: str, tmp_path: Path) -> None:
    folder = Folder(place)
    assert folder.names() == []
    assert not folder.exists()
    folder.make()
    assert folder.exists()
    folder.write("b", b"1")
    folder.write("b", b"22")
    folder.child("a").make()
    (tmp_path / "file").write_bytes(b"333")
    folder.child("a").upload(tmp_path / "file", "c")
    assert folder.names() == ["a", "b"], "what was written under another name first is gone"
    assert (folder.read("b"), folder.read_if_there("a/c"), folder.read_if_there("x")) == (b"22", b"333", b"")
    folder.download(tmp_path / "copy")
    assert (tmp_path / "copy" / "a" / "c").read_bytes() == b"333"
    folder.remove("b")
    folder.remove("b")
    assert folder.names() == ["a"]
    with pytest.raises(ConfigError, match=r"cannot read '.*/b': .*check the address, the network and the rights"):
        folder.read("b")


def test_the_last_lines_of_a_long_file_are_whole(place: str) -> None:
    folder = Folder(place)
    folder.make()
    assert folder.last_lines("log") == b""
    folder.write("log", b"".join(b"line %04d\n" % number for number in range(1000)))
    assert folder.last_lines("log", 25) == b"line 0998\nline 0999\n"
    assert len(folder.last_lines("log", 10**6).splitlines()) == 1000


def test_a_write_that_breaks_off_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(str(tmp_path))
    folder.write("file", b"whole")

    class Breaking:
        def __getattr__(self, name: str) -> object:
            return getattr(fs.LocalFileSystem(), name)

        def move(self, *_: str) -> None:
            raise OSError("the disk is gone")

    monkeypatch.setattr(folder, "system", Breaking())
    with pytest.raises(ConfigError, match=r"cannot write '.*/file': the disk is gone"):
        folder.write("file", b"other")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert folder.names() == ["file"], "nothing is left behind"


def test_writers_of_one_file_at_a_time_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(str(tmp_path))

    class Overtaken:
        def __getattr__(self, name: str) -> object:
            return getattr(fs.LocalFileSystem(), name)

        def move(self, source: str, target: str) -> None:
            Folder(str(tmp_path)).write("file", b"other")
            assert (tmp_path / "file").read_bytes() == b"other"
            fs.LocalFileSystem().move(source, target)

    monkeypatch.setattr(folder, "system", Overtaken())
    folder.write("file", b"mine")
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert folder.names() == ["file"]


@pytest.mark.parametrize(
    ("uri", "inner"),
    [
        ("/a/b", "/a/b/c"),
        ("/a/b?d=e/f/", "/a/b?d=e/f/c"),
        ("s3://a/b/", "s3://a/b/c"),
        ("s3://a/b?x=http://h:9/&y=z", "s3://a/b/c?x=http://h:9/&y=z"),
        ("s3://a/b/?x=1", "s3://a/b/c?x=1"),
    ],
)
def test_a_name_stands_before_the_query(uri: str, inner: str) -> None:
    assert join(uri, "c") == inner
    assert cut(inner) == (uri if uri.endswith("z") else uri.replace("/?", "?").rstrip("/"), "c")


def test_a_folder_keeps_the_query_of_its_uri(tmp_path: Path, config: RunConfig) -> None:
    folder = Folder(f"file://{tmp_path}/?mode=1")
    folder.child("a").make()
    folder.child("a").write("b", b"1")
    assert (tmp_path / "a" / "b").read_bytes() == b"1"
    assert Folder(folder.uri).child("a").uri == f"file://{tmp_path}/a?mode=1"
    assert RunFolder.of(replace(config, storage=folder.uri)).path == f"{tmp_path}/one"


def test_a_relative_path_is_that_of_the_directory_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert open_uri("images")[1] == absolute("images") == str(tmp_path / name / "images")


def test_a_hash_is_a_part_of_the_name(tmp_path: Path) -> None:
    assert open_uri(f"file://{tmp_path}/set#1")[1] == f"{tmp_path}/set#1"


def test_a_closing_slash_changes_nothing(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/slashes/file", b"")
    for uri in (f"{tmp_path}/", f"file://{tmp_path}/", "memory://slashes/"):
        system, info = stat_uri(uri)
        assert info.type == fs.FileType.Directory
        assert not info.path.endswith("/")
        assert all("//" not in entry.path for entry in system.get_file_info(fs.FileSelector(info.path)))


def test_an_address_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot open 'foo://x': .*foo"):
        Folder("foo://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create"):
        Folder(str(tmp_path / "file" / "runs")).make()


# networks that fail


class Failing:
    """Raises its errors one by one, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "content"

    def read(self) -> str:
        return retrying(self, "read", "s3://bucket/file", sleep=self.pauses.append)


def test_a_read_that_fails_for_a_moment_is_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    read = Failing(OSError("curlCode: 28, timeout"), TimeoutError(), ConnectionResetError("reset by peer"))
    with caplog.at_level(logging.WARNING, "raysl"):
        assert read.read() == "content"
    assert read.pauses == [0.2, 0.4, 0.8]
    assert caplog.messages == ["cannot read 's3://bucket/file': curlCode: 28, timeout; trying again, 4 times at most"]


def test_a_read_that_keeps_failing_ends_with_the_address_the_tries_and_the_reason() -> None:
    read = Failing(*[OSError("no route to host\nat line 7")] * 6)
    with pytest.raises(RunFailed, match=r"cannot read 's3://bucket/file' after 5 tries: no route to host; check"):
        read.read()
    assert read.pauses == [0.2, 0.4, 0.8, 1.6]
    assert len(read.errors) == 1


@pytest.mark.parametrize(
    "error", [FileNotFoundError("x"), PermissionError("x"), IsADirectoryError("x"), NotADirectoryError("x"), KeyError()]
)
def test_what_waiting_does_not_cure_is_not_tried_again(error: Exception) -> None:
    read = Failing(error)
    with pytest.raises(type(error)):
        read.read()
    assert read.pauses == []


def test_a_missing_local_file_is_missing_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 3600.0)
    system, path = open_uri(str(tmp_path / "none.jpg"))
    with pytest.raises(FileNotFoundError):
        read_file(system, path)
    (tmp_path / "none.jpg").write_bytes(b"here")
    assert read_file(system, path) == b"here"


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
def test_parts_of_a_file_come_in_the_order_asked_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    folder = Folder(place)
    folder.make()
    folder.write("file", bytes(range(100)))
    path = f"{folder.path}/file"
    assert read_ranges(folder.system, path, [90, 0, 5], [10, 2, 1]) == [bytes(range(90, 100)), b"\x00\x01", b"\x05"]
    assert read_ranges(folder.system, path, [], []) == []
    with pytest.raises(RunFailed, match=r"cannot read '.*file' after 5 tries: 9 bytes instead of 10 at byte 91"):
        read_ranges(folder.system, path, [0, 91], [1, 10])


class Answers(BaseHTTPRequestHandler):
    """Answers each GET with the next status, the last one for ever."""

    statuses: ClassVar[list[int]] = []
    num_gets: ClassVar[int] = 0

    def do_HEAD(self) -> None:
        self._head(200)

    def do_GET(self) -> None:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        type(self).num_gets += 1
        self._head(status)
        self.wfile.write(b"pixels")

    def _head(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "6")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(Answers, "num_gets", 0)
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/image.jpg"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("statuses", "num_gets", "message"),
    [
        ([503, 429, 200], 3, None),
        ([503], 5, r"cannot read 'http://127\.0\.0\.1:\d+/image\.jpg' after 5 tries: 503"),
        ([404], 1, r"cannot read 'http://127\.0\.0\.1:\d+/image\.jpg': .*; check the address"),
        ([403], 1, r"cannot read 'http://127\.0\.0\.1:\d+/image\.jpg': 403"),
    ],
)
def test_a_website_is_asked_again_only_where_it_may_change_its_mind(
    website: str, monkeypatch: pytest.MonkeyPatch, statuses: list[int], num_gets: int, message: str | None
) -> None:
    monkeypatch.setattr(Answers, "statuses", statuses)
    system, path = open_uri(website)
    if message is None:
        assert read_file(system, path) == b"pixels"
    else:
        with pytest.raises((ConfigError, RunFailed), match=message), storage_errors("read", website):
            read_file(system, path)
    assert Answers.num_gets == num_gets


def test_a_website_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match=r"^cannot write 'http://127.0.0.1:9/runs/a': this kind of storage does not "):
        Folder("http://127.0.0.1:9/runs").write("a", b"content")


# who works in a run's folder


@pytest.mark.thorough
def test_settings_are_claimed_and_others_refused_with_what_differs(config: RunConfig) -> None:
    folder = RunFolder.of(config)
    folder.claim(config)
    folder.claim(replace(config, train=replace(config.train, workers=2)))
    written = folder.read("run.yaml")
    other = replace(config, seed=7, optim=replace(config.optim, lr=0.5))
    with pytest.raises(ConfigError, match=r"(?s)a run named 'one'.*seed.*7.*or go back") as refused:
        folder.claim(other)
    assert "optim.lr" in str(refused.value)
    assert folder.read("run.yaml") == written
