import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from pyarrow import fs

from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.storage import Folder, absolute, info_of, open_uri
from raysl.train.run_folder import STALE_S, RunFolder


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


def test_a_relative_path_is_that_of_the_directory_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert open_uri("images")[1] == absolute("images") == str(tmp_path / name / "images")


def test_a_closing_slash_changes_nothing(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe("/slashes/file", b"")
    for uri in (f"{tmp_path}/", f"file://{tmp_path}/", "memory://slashes/"):
        system, info = info_of(uri)
        assert info.type == fs.FileType.Directory
        assert not info.path.endswith("/")
        assert all("//" not in entry.path for entry in system.get_file_info(fs.FileSelector(info.path)))


def test_an_address_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot open 'foo://x': .*foo"):
        Folder("foo://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create"):
        Folder(str(tmp_path / "file" / "runs")).make()


# who works in a run's folder


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


def test_one_driver_at_a_time(config: RunConfig) -> None:
    folder = RunFolder.of(config)
    folder.make()
    with folder.locked():
        taken = pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on .*; wait for it, stop it")
        with taken, RunFolder.of(config).locked():
            pass
        other = RunFolder.of(replace(config, name="two"))
        other.make()
        with other.locked():
            pass
    with folder.locked():
        pass


def test_a_lock_left_behind_a_uri_is_taken_over_after_a_minute(config: RunConfig) -> None:
    folder = RunFolder.of(config)
    folder.make()
    note = {"who": "process 1 on gone", "token": "x", "time": time.time()}
    if folder.is_local:
        folder.write(".lock", json.dumps(note).encode())  # the lock is the system's, not the file
        with folder.locked():
            return
    folder.write(".lock", json.dumps(note).encode())
    with pytest.raises(ConfigError, match=r"in use by process 1 on gone, last seen \d+ s ago"), folder.locked():
        pass
    folder.write(".lock", json.dumps(note | {"time": time.time() - STALE_S - 1}).encode())
    with folder.locked():
        assert b"gone" not in folder.read(".lock")
    assert not folder.exists(".lock")


def test_half_a_checkpoint_does_not_count(config: RunConfig) -> None:
    folder = RunFolder.of(config)
    for name in ("checkpoint_000000002", "checkpoint_000000010", "checkpoint_000000030"):
        folder.child(name).make()
        if not name.endswith("30"):
            folder.child(name).write("meta.json", b"{}")
    assert folder.checkpoints() == ["checkpoint_000000002", "checkpoint_000000010"]
