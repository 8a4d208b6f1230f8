"""How long waiting threads spin, and on how many CPUs a run counts."""

import os
import sys
import time
from pathlib import Path

import pytest

from raysl import cli
from raysl.process import cpus as module
from raysl.process.cpus import WAIT_SETTINGS, Cpus, CpuTime, measure_cpus, thread_variables, usable_cpus


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_a_wait_that_the_user_chose_is_left_alone(name: str) -> None:
    assert thread_variables({"OMP_NUM_THREADS": "4"}) == {"GOMP_SPINCOUNT": "10000", "MALLOC_ARENA_MAX": "1"}
    assert thread_variables({name: "x"}) == {"MALLOC_ARENA_MAX": "1"}
    assert thread_variables({name: "x", "MALLOC_ARENA_MAX": "4"}) == {}


@pytest.mark.parametrize(("chosen", "spin"), [({}, "10000"), ({"OMP_WAIT_POLICY": "passive"}, None)])
def test_the_command_line_shortens_the_spin_of_its_own_process(
    chosen: dict[str, str], spin: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS}
    monkeypatch.setattr(os, "environ", {**inherited, **chosen})
    monkeypatch.setattr(sys, "argv", ["raysl", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ.get("GOMP_SPINCOUNT") == spin


@pytest.mark.parametrize(
    ("usable", "others", "free"),
    [
        (2, 0.0, 2),
        (2, 0.5, 2),  # a quarter
        (2, 0.6, 1),
        (2, 2.0, 1),
        (8, 2.0, 8),
        (8, 2.5, 5),
        (64, 3.0, 64),
        (1, 0.9, 1),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_cpus_are_free_that_are_idle_or_used_by_this_process_up_to_a_quarter(
    usable: int, others: float, free: int, share: float
) -> None:
    begin, seconds = CpuTime(when=5.0, idle=100.0, used=3.0), 2.0
    left = (usable - others) * seconds
    end = CpuTime(begin.when + seconds, begin.idle + share * left, begin.used + (1 - share) * left)
    assert begin.free_until(end, usable) == Cpus(usable, free)


def test_workers_share_the_free_cpus_and_each_has_a_thread() -> None:
    assert [Cpus(usable=8, free=5).threads(num_workers) for num_workers in (1, 2, 5, 8)] == [5, 2, 1, 1]


@pytest.mark.cluster  # it forks
def test_time_of_ended_processes_below_this_one_counts_as_used() -> None:
    before = CpuTime.now()
    assert before is not None
    if (child := os.fork()) == 0:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    after = CpuTime.now()
    assert after is not None
    assert after.used - before.used > 0.15
    assert after.idle >= before.idle


def test_a_measurement_takes_a_while_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"when": 7.0, "slept": 0.0}

    def sleep(seconds: float) -> None:
        times["slept"] += seconds

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module.time, "monotonic", lambda: times["when"] + times["slept"])
    for age in (0.0, 0.1, 5.0):
        since = CpuTime.now()
        assert since is not None
        times |= {"when": since.when + age, "slept": 0.0}
        measure_cpus(since)
        assert times["slept"] == pytest.approx(max(0.0, module.LOOK_S - age))


@pytest.mark.parametrize(
    ("quota", "num"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), (None, 8)]
)
def test_the_quota_of_a_container_bounds_the_cpus(
    quota: str | None, num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(module, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cpus() == num
