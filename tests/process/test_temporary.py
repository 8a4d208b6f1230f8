import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raysl.process.temporary import make_temporary_folder, temporary_folder

CODE = "from raysl.process.temporary import temporary_folder as t; f = t('ray'); print(f.name, flush=True); input()"


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_goes_with_its_block_and_those_of_living_processes_and_other_machines_stay(tmp_path: Path) -> None:
    others = [tmp_path / "raysl_ray_x1y2z3", tmp_path / f"raysl_ray_00000000-{os.getpid()}-1_abc", tmp_path / "other"]
    for other in others:
        other.mkdir()
    kept = make_temporary_folder("logs")
    with temporary_folder("ray") as folder:
        assert sorted(tmp_path.iterdir()) == sorted([*others, kept, Path(folder)])
    assert sorted(tmp_path.iterdir()) == sorted([*others, kept])


@pytest.mark.cluster
def test_what_a_killed_process_has_left_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().decode().strip())
        make_temporary_folder("a").rmdir()
        assert left.is_dir(), "its process lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left.is_dir()
        make_temporary_folder("b").rmdir()
    assert list(tmp_path.iterdir()) == []
