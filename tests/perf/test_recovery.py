import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf.recovery import measure, table
from raysl.errors import ConfigError, RunFailed
from raysl.process.proc import command_line, descendants


@pytest.mark.cluster
def test_a_run_that_fails_is_reported_with_what_it_said() -> None:
    with pytest.raises(
        RunFailed, match=r"(?s)run-0: no checkpoint before it ended with code 2:.*error: .*no-such-config"
    ):
        measure("no-such-config", repeats=1)


def test_a_system_without_proc_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("perf.recovery.PROC", tmp_path / "proc")
    with pytest.raises(ConfigError, match="in /proc: run it on Linux"):
        measure(repeats=1)


def test_the_table_has_both_goals() -> None:
    repeats = [{"worker": 7.0, "driver": 19.0}, {"worker": 9.0, "driver": 15.0}, {"worker": 7.5, "driver": 16.0}]
    assert table({"repeats": repeats}).splitlines() == [
        "worker killed to next step               7.50 s (7.0 to 9.0)  goal at most 8 s: ok",
        "driver killed: command to first step    16.00 s (15.0 to 19.0)  goal at most 15 s: short",
    ]


@pytest.mark.cluster
def test_the_family_of_a_process_is_all_that_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (grandchild,) = descendants(process.pid)
        assert "input()" in command_line(grandchild)
        assert {process.pid, grandchild} <= set(descendants(os.getpid()))
        process.communicate(b"\n")
    assert descendants(process.pid) == []
    assert command_line(process.pid) == ""


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_are_recovered_from() -> None:
    overrides = ("data.limit=64", "train.batch_size=32", "optim.warmup=0ep")
    numbers = measure(overrides=overrides, repeats=1)
    assert numbers["recovery"] == numbers["repeats"][0]
    assert 0 < numbers["recovery"]["worker"] < 120
    assert 0 < numbers["recovery"]["driver"] < 120
