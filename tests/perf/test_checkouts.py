"""Another version of raysl takes part in `python -m perf pipeline`."""

from pathlib import Path

import pytest

from perf import checkouts
from perf.pipeline import CHECKOUT, PICTURES, contender_names, measure
from raysl.errors import ConfigError


def test_its_processes_import_its_code_and_start_a_cluster_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    options = checkouts.options(tmp_path)
    assert options["cwd"] == tmp_path
    variables = options["env"]
    assert variables["PYTHONPATH"] == str(tmp_path)
    assert "RAY_ADDRESS" not in variables


def test_a_folder_that_is_no_checkout_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="git worktree add"):
        measure(beside=tmp_path)


def test_contenders_are_chosen_by_their_letters() -> None:
    assert contender_names("df") == "df"
    assert set(contender_names()) >= set("abcdefh")
    with pytest.raises(ConfigError, match="no contender 'z'"):
        contender_names("dz")


@pytest.mark.parametrize(("name", "library"), [("g", "DALI"), ("i", "stable-pretraining")])
def test_peers_take_part_where_they_are_installed(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.pipeline.PEERS", {name: (library, lambda: True)})
    assert contender_names() == "abcdefghi"
    monkeypatch.setattr("perf.pipeline.PEERS", {name: (library, lambda: False)})
    assert contender_names() == "abcdefghi".replace(name, "")
    with pytest.raises(ConfigError, match=f"{library} is not installed; run `pip install"):
        contender_names("d" + name)


PROGRAM = """
import json, os, socket, sys
from pathlib import Path

import psutil

def main():
    task = json.loads(sys.argv[2])
    commands = [" ".join(child.cmdline()) for child in psutil.Process(os.getppid()).children()]
    others = sum("perf/checkouts.py" in command for command in commands) - 1
    with Path("turns").open("a") as log:
        print(os.getpid(), others, file=log)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(task["socket"])
    line = connection.makefile("rw")
    hello = {"name": task["name"], "rank": 0, "niceness": 0}
    report = {"images_per_s": 5.0, "longest_s": 0.1, "memory_gb": 1.0}
    while True:
        print(json.dumps(hello), file=line, flush=True)
        if json.loads(line.readline())["is_last"]:
            break
        hello = report
        sum(range(5_000_000))  # CPU time that is more than a tick of the clock
    print(json.dumps(report), file=line, flush=True)
"""


@pytest.mark.cluster
def test_a_contender_is_alone_in_its_turn_and_new_in_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "__init__.py").touch()
    (tmp_path / "perf" / "streams.py").write_text(PROGRAM)
    monkeypatch.setattr("perf.pipeline.CHECKOUT", tmp_path)
    monkeypatch.setitem(PICTURES, 32, 2)
    numbers = measure("af", sizes=(32,), repeats=2, beside=tmp_path)
    turns = [line.split() for line in (tmp_path / "turns").read_text().splitlines()]
    assert len({pid for pid, _ in turns}) == 2 * len("afF")
    assert {others for _, others in turns} == {"0"}
    assert numbers["32"] == dict.fromkeys("afF", 5.0)


@pytest.mark.slow
def test_a_version_is_measured_beside_itself() -> None:
    numbers = measure("f", sizes=(32,), repeats=1, seconds=0.1, threads=1, beside=CHECKOUT)
    assert set(numbers["32"]) == {"f", "F"}
    assert numbers["ratios"]["32"] == {"f/F": numbers["32"]["f"] / numbers["32"]["F"]}
