"""Two processes that measure one checkpoint keep out of each other's way."""

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from raysl.benchmarks.suite.workplace import OWN, YOUNG_S, workplace
from raysl.storage.folder import Folder

AT_WORK = """
import sys
from raysl.benchmarks.suite.workplace import workplace
from raysl.storage.folder import Folder

with workplace(Folder(sys.argv[1])) as place:
    place.features("test").make()
    place.features("test").write("part", b"mine")
    place.work.make()
    print(place.folder.uri, flush=True)
    sys.stdin.readline()
    assert place.features("test").read("part") == b"mine"
    place.forget_features()
"""


def at_work(folder: Path) -> subprocess.Popen[str]:
    """Another process that has features in a folder of results, until it is given a line."""
    words = [sys.executable, "-c", AT_WORK, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


@pytest.mark.cluster
def test_a_second_process_leaves_the_features_of_one_at_work_alone(tmp_path: Path) -> None:
    first = at_work(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline().strip() == str(tmp_path)
    with workplace(Folder(str(tmp_path))) as place:
        assert Path(place.folder.path).parent == tmp_path
        assert Path(place.folder.path).name.startswith(OWN)
        place.begin_anew()
        place.features("test").make()
        place.features("test").write("part", b"another's")
        place.forget_features()
        assert (tmp_path / "features" / "test" / "part").read_bytes() == b"mine"
        assert (tmp_path / "work").is_dir()
    assert not list(tmp_path.glob(f"{OWN}*"))
    end(first)
    assert not (tmp_path / "features").exists()
    assert (tmp_path / "work").is_dir(), "its trainings stay"


def test_only_features_that_were_used_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "features" / "kept").mkdir(parents=True)
    with workplace(Folder(str(tmp_path))) as place:
        place.features("test").make()
        place.forget_features()
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["kept"]


@pytest.mark.cluster
def test_what_a_killed_process_left_in_a_folder_of_its_own_goes_at_the_next_start(tmp_path: Path) -> None:
    first, second = at_work(tmp_path), None
    try:
        assert first.stdout is not None
        first.stdout.readline()
        second = at_work(tmp_path)
        assert second.stdout is not None
        own = Path(second.stdout.readline().strip())
        second.kill()
        second.communicate()
        end(first)
        with workplace(Folder(str(tmp_path))):
            assert own.exists(), "so young that its process may be about to lock it"
        aged = own.stat().st_mtime - 2 * YOUNG_S
        os.utime(own, (aged, aged))
        with workplace(Folder(str(tmp_path))) as place:
            assert place.folder.uri == str(tmp_path)
        assert not own.exists()
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()


def test_a_remote_folder_is_held_by_a_lock_of_files_that_goes_at_the_end() -> None:
    memory = fsspec.filesystem("memory")
    try:
        folder = Folder("memory://measured")
        with workplace(folder) as place:
            place.features("test").make()
            place.features("test").write("part", b"1")
            assert [name for name in folder.names() if name.startswith(".lock-")]
            place.forget_features()
        assert memory.find("/measured") == []
    finally:
        memory.rm("/measured", recursive=True)
