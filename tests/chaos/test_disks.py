"""Disks that are full, limited, read-only or away while a run trains."""

import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.conftest import Calm, Disturb, Record
from tests.chaos.harness import Disturbed

pytestmark = pytest.mark.slow

ALL = "train.keep_checkpoints=100"
PACED = "callbacks.gate.pace_s=1"
AWAY_S = 15


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=2m", "none", str(disk))
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this user may not mount a disk")
    yield disk
    while subprocess.run(["umount", "--lazy", str(disk)], capture_output=True).returncode == 0:
        continue


def check_ends_and_goes_on(run: Disturbed, error: str) -> None:
    """Fail unless it ends with that error, and the same command goes on once the disk is as before."""
    output = run.last.ended(1)
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert error in line


def test_a_full_disk_ends_the_run_and_more_room_lets_it_go_on(
    disk: Path, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(ALL, storage=str(disk))
    run.start()
    run.until_held()
    free = psutil.disk_usage(str(disk)).free
    run.hit(lambda: (disk / "of others").write_bytes(bytes(free - 50_000)))
    run.let_go()
    check_ends_and_goes_on(run, f"the disk is full: {disk}/one has ")
    (disk / "of others").unlink()
    mount("-o", "remount,size=20m", str(disk))
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("the disk of the run gets full, and has room again", calm()))


def test_a_file_size_limit_counts_as_a_full_disk(disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb()
    run.start()
    run.until_held()
    worker = psutil.Process(run.workplace.one("RayTrainWorker"))
    run.hit(lambda: worker.rlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)))
    run.let_go()
    check_ends_and_goes_on(run, "a file would be larger than this process may write: ")
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("a limit of file sizes (EFBIG), as of a quota", calm()))


def test_a_folder_that_becomes_read_only_ends_the_run_with_its_name(
    disk: Path, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(storage=str(disk))
    run.start()
    run.until_held()

    def protect() -> None:
        mount("--bind", str(disk), str(disk))
        mount("-o", "remount,bind,ro", str(disk))

    run.hit(protect)
    run.let_go()
    check_ends_and_goes_on(run, str(disk))
    subprocess.run(["umount", str(disk)], check=True)
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("the folder becomes read-only, and writable again", calm()))


def test_a_folder_that_is_away_for_a_moment_is_outlasted(
    disk: Path, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(PACED, storage=str(disk), hold=0)
    run.start()
    run.last.until(lambda: len(run.steps()) >= 6)
    run.hit(lambda: mount("-t", "tmpfs", "none", str(disk)))
    time.sleep(AWAY_S)  # the fault itself
    subprocess.run(["umount", str(disk)], check=True)
    run.last.ended()
    record(run.row(f"the folder is away for {AWAY_S} s", calm()))
    assert run.steps_again() == 0
