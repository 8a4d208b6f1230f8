"""Folders that the processes of a node share."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raysl.process import temporary
from raysl.process.temporary import delete_abandoned, forget_node_folders, node_folder

USER = """
from raysl.process.temporary import node_folder
folder = node_folder("killed", "a", lambda path: None)
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_is_made_once_and_others_wait_for_it() -> None:
    made, may_end = list[Path](), threading.Event()

    def make(folder: Path) -> None:
        made.append(folder)
        assert may_end.wait(20)
        (folder / "file").write_text("content")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(node_folder, "token", "a", make) for _ in range(3)]
        may_end.set()
        folders = [one.result() for one in waiting]
    assert len(made) == 1
    assert [(folder.path / "file").read_text() for folder in folders] == ["content"] * 3
    assert node_folder("token", "b", lambda folder: None).path != folders[0].path


def test_what_fails_is_made_again_by_the_next_one(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        node_folder("token", "a", fail)
    assert not (node_folder("token", "a", lambda folder: None).path / "half").exists()


def test_a_command_deletes_its_own_at_its_end_and_open_files_stay_readable(tmp_path: Path) -> None:
    folder = node_folder("token", "a", lambda path: (path / "file").write_text("content") and None)
    with (folder.path / "file").open() as file:
        forget_node_folders("token")
        assert list(tmp_path.iterdir()) == []
        assert file.read() == "content"
    folder.close()
    forget_node_folders("token")
    assert node_folder("token", "a", lambda path: None).path.exists()


def test_unused_folders_stay_while_they_are_young_and_used_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused = (node_folder(token, "a", lambda path: None) for token in ("used", "unused"))
    unused.close()
    delete_abandoned()
    assert unused.path.exists()
    monkeypatch.setattr(temporary, "YOUNG_S", -1.0)
    delete_abandoned()
    assert used.path.exists()
    assert not unused.path.exists()


@pytest.mark.cluster
def test_what_a_killed_process_has_left_is_deleted_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "YOUNG_S", -1.0)
    with subprocess.Popen([sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().decode().strip())
        delete_abandoned()
        assert left.is_dir(), "its process lives"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        node_folder("next", "a", lambda path: None)
    assert [path.name for path in tmp_path.iterdir()] == ["raysl_shared_next"]
