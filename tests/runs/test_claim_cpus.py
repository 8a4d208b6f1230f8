"""A run counts on the CPUs of its first start, and its workers make their threads for them."""

import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train
import torch

from raysl.config.load import load_config
from raysl.process.cpus import ONE_HEAP, WAIT_SETTINGS, Cpus, CpuTime
from raysl.runs import begin, run, worker
from raysl.runs.begin import CPUS_FILE, claim_cpus
from raysl.runs.folder import RunFolder
from raysl.train.file_names import EVENTS_FILE, parse_events
from tests.runs.runs import SMALL, finish, start

SINCE = CpuTime(when=0.0, idle=0.0, used=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path))


def measured(monkeypatch: pytest.MonkeyPatch, cpus: Cpus) -> None:
    monkeypatch.setattr(begin, "measure_cpus", lambda since: cpus)


def test_a_resumed_run_counts_on_the_cpus_that_it_began_with(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured(monkeypatch, Cpus(usable=8, free=3))
    with caplog.at_level(logging.INFO, "raysl"):
        assert claim_cpus(folder, SINCE) == Cpus(usable=8, free=3)
    (event,) = [note["event"] for note in parse_events(folder.read(EVENTS_FILE))]
    assert event in caplog.messages
    assert event.startswith("other work uses some of the 8 CPUs, so this run uses 3")
    measured(monkeypatch, Cpus(usable=8, free=8))
    assert claim_cpus(folder, SINCE) == claim_cpus(folder, None) == Cpus(usable=8, free=3)
    assert len(parse_events(folder.read(EVENTS_FILE))) == 1


def test_an_idle_machine_is_kept_and_not_told(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, Cpus(usable=8, free=8))
    claim_cpus(folder, SINCE)
    assert json.loads(folder.read(CPUS_FILE)) == {"usable": 8, "free": 8}
    assert not folder.exists(EVENTS_FILE)


def test_a_run_that_measures_nothing_counts_on_all(folder: RunFolder) -> None:
    assert claim_cpus(folder, None) is None
    assert not folder.exists(CPUS_FILE)


@pytest.mark.parametrize(
    ("words", "device", "is_private", "trials", "step", "is_measured"),
    [
        ([], "cpu", True, 0, 0, True),
        (["train.threads=3"], "cpu", True, 0, 0, False),
        ([], "cuda", True, 0, 0, False),
        ([], "cpu", False, 0, 0, False),  # nodes of a cluster
        ([], "cpu", True, 2, 0, False),  # a trial of a sweep
        ([], "cpu", True, 0, 12, False),  # it began before
    ],
)
def test_only_a_run_that_begins_alone_on_this_machine_measures(
    words: list[str],
    device: str,
    is_private: bool,
    trials: int,
    step: int,
    is_measured: bool,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(monkeypatch, Cpus(usable=8, free=3))
    monkeypatch.setattr(run, "is_private", lambda: is_private)
    monkeypatch.setattr(run, "cluster_resources", lambda: SimpleNamespace(trials=trials))
    config = load_config("quickstart", words)
    this = SimpleNamespace(
        run=SimpleNamespace(config=config), folder=folder, cpu_time=SINCE, newest=SimpleNamespace(step=step)
    )
    cpus = run._Start._claim_cpus(this, SimpleNamespace(device=device))  # type: ignore[arg-type]
    assert cpus == (Cpus(usable=8, free=3) if is_measured else None)


@pytest.mark.parametrize(
    ("cpus", "words", "num_workers", "threads"),
    [
        (None, [], 1, 8),
        (Cpus(usable=8, free=3), [], 1, 3),
        (Cpus(usable=8, free=3), [], 2, 1),
        (Cpus(usable=8, free=3), ["train.threads=5"], 1, 5),
        (Cpus(usable=2, free=1), [], 1, 8),  # of another machine
    ],
)
def test_a_worker_has_its_share_of_the_cpus_that_its_run_counts_on(
    cpus: Cpus | None, words: list[str], num_workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: None)
    monkeypatch.setattr("raysl.process.cpus.usable_cpus", lambda: 8)
    context = SimpleNamespace(get_local_world_size=lambda: num_workers)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    job = SimpleNamespace(cpus=cpus, config=load_config("quickstart", words))
    worker._prepare_process(job, torch.device("cpu"))  # type: ignore[arg-type]
    assert seen == [threads]


NOTES = """
import ctypes
from pathlib import Path

from raysl.train.callbacks.callback import Callback


def first_environment():
    parts = Path("/proc/self/environ").read_text().split("\\0")
    return " ".join(sorted(part for part in parts if part.startswith(("GOMP_", "OMP_WAIT", "MALLOC_"))))


def count_heaps():
    libc, told = ctypes.CDLL(None), Path(__file__).with_name("heaps")
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(told).encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return told.read_text().count("<heap nr=")


class Notes(Callback):
    def on_train_start(self, run):
        Path(__file__).with_name("worker").write_text(f"{first_environment()}, {count_heaps()} heap")
"""

DRIVER = """
import sys
import ray
import raysl
from raysl.cluster.connection import connect
if "theirs" in sys.argv:
    ray.init(address="local", include_dashboard=False)
else:
    connect()
from notes import first_environment
print("task:", ray.get(ray.remote(first_environment).remote()))
raysl.pretrain(raysl.load_config("quickstart", sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("cluster", "chosen", "task", "worker_has"),
    [
        pytest.param("ours", {}, *["GOMP_SPINCOUNT=10000 MALLOC_ARENA_MAX=1"] * 2, marks=pytest.mark.cluster),
        pytest.param(
            *("ours", {"OMP_WAIT_POLICY": "passive"}, *["MALLOC_ARENA_MAX=1 OMP_WAIT_POLICY=passive"] * 2),
            marks=pytest.mark.slow,
        ),
        pytest.param("theirs", {}, "", "GOMP_SPINCOUNT=10000 MALLOC_ARENA_MAX=1", marks=pytest.mark.slow),
    ],
)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="counts the heaps of glibc")
def test_workers_and_tasks_begin_with_a_short_spin_and_one_heap_unless_the_user_chose(
    cluster: str, chosen: dict[str, str], task: str, worker_has: str, tmp_path: Path
) -> None:
    """`/proc/self/environ` is the environment with which a process began, before it loaded anything."""
    (tmp_path / "notes.py").write_text(NOTES)
    words = [*SMALL, "train.epochs=1", f"storage={tmp_path}", f"callbacks.notes.name={tmp_path}/notes.py:Notes"]
    inherited = {name: value for name, value in os.environ.items() if name not in (*WAIT_SETTINGS, *ONE_HEAP)}
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster, *words],
        env={**inherited, **chosen, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"task: {task}\n" in done.stdout
    assert (tmp_path / "worker").read_text() == f"{worker_has}, 1 heap"


@pytest.mark.slow
def test_a_second_start_has_the_threads_of_the_first(tmp_path: Path) -> None:
    words = ["train.threads=null", "train.epochs=1"]
    here = Cpus.here()
    folder = RunFolder(f"{tmp_path}/one")
    folder.make()
    folder.write(CPUS_FILE, json.dumps({"usable": here.usable, "free": 1}).encode())
    finish(start(tmp_path, "one", *words))
    finish(start(tmp_path, "one", "train.threads=null", "train.extend=true"))
    starts = [
        note["event"]
        for note in parse_events(folder.read(EVENTS_FILE))
        if note["event"].endswith((" thread", " threads"))
    ]
    assert [event.rpartition(", ")[2] for event in starts] == ["1 thread"] * 2
