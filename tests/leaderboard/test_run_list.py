import json
import os
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

import raysl
from raysl.cli import app
from raysl.config.dump import dump
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed, Stopped
from raysl.leaderboard.run_list import find_runs, list_runs
from raysl.runs.folder import RunFolder
from raysl.runs.stopping import noting_end
from raysl.storage.owner import own_folder
from raysl.train.file_names import event_line

EPOCHS = 4
SETTINGS = {method: dump(load_config(f"digits/{method}", [f"train.epochs={EPOCHS}"])) for method in ("simclr", "byol")}


def make_run(
    folder: Path, epoch: float = 0.0, method: str = "simclr", end: str | None = None, **metrics: float
) -> Path:
    """A run's folder as training leaves it, with ten steps an epoch."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(SETTINGS[method])
    if epoch:
        line = {"step": round(10 * epoch), "epoch": epoch, "loss": 2.0, "step_s": 0.5, **metrics}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        events = event_line("started on 1 worker") + event_line("saved it", "save")
        (folder / "events.jsonl").write_bytes(events + (event_line(f"{end} because", end) if end else b""))
        (folder / "startup.json").write_text("{}")
    return folder


def states(storage: Path, *where: str) -> dict[str, str]:
    return {run.name: run.state for run in find_runs(str(storage), where)}


def test_each_state_is_told_from_the_files(tmp_path: Path) -> None:
    make_run(tmp_path / "new")
    make_run(tmp_path / "cut", 1.5)
    make_run(tmp_path / "failed", 2.0, end="failed")
    make_run(tmp_path / "stopped", 2.0, end="stopped")
    make_run(tmp_path / "finished", 4.0, end="finished")
    make_run(tmp_path / "unnoted", 4.0)  # killed before it noted its end
    busy = make_run(tmp_path / "busy", 1.0)
    with own_folder(RunFolder(str(busy))):
        assert states(tmp_path) == {
            "new": "new",
            "cut": "interrupted",
            "failed": "failed",
            "stopped": "stopped",
            "finished": "finished",
            "unnoted": "finished",
            "busy": "running",
        }
        (run,) = find_runs(str(tmp_path), ["state=running"])
    assert (run.step, run.epoch, run.epochs, run.left_s) == (10, 1.0, EPOCHS, 30 * 0.5)
    (run,) = find_runs(str(tmp_path), ["name=failed"])
    assert (run.reason, run.left_s) == ("failed because", None)


def test_a_start_that_was_stopped_and_goes_on_is_no_longer_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 2.0, end="stopped")
    with (run / "events.jsonl").open("ab") as file:
        file.write(event_line("resumed at step 20"))
    assert states(tmp_path) == {"a": "interrupted"}


def test_runs_of_sweeps_are_found_and_checkpoints_are_no_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "sweep" / "trial_1", 1.0)
    run = make_run(tmp_path / "alone", 1.0)
    meta = {"format": 1, "step": 30, "metrics": {"step": 30, "epoch": 3.0}}
    (run / "checkpoint_000000030").mkdir()
    (run / "checkpoint_000000030" / "run.yaml").write_text(SETTINGS["simclr"])
    (run / "checkpoint_000000030" / "meta.json").write_text(json.dumps(meta))
    assert sorted(states(tmp_path)) == ["alone", "sweep/trial_1"]
    (found,) = find_runs(str(tmp_path), ["name=alone"])
    assert (found.step, found.epoch) == (30, 3.0)  # its last line is of step 10
    (itself,) = find_runs(str(run))
    assert itself.name == "alone"


def test_converted_weights_are_no_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "alone", 1.0)
    checkpoint = make_run(tmp_path / "theirs" / "checkpoint_000000000")
    (checkpoint / "meta.json").write_text(json.dumps({"format": 1, "method": "imported", "step": 0}))
    assert list(states(tmp_path)) == ["alone"]
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/converted", recursive=True)
    try:
        assert [run.name for run in find_runs("memory://converted")] == ["alone"]
    finally:
        memory.rm("/converted", recursive=True)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (["method=byol"], {"b"}),
        (["method!=byol"], {"a"}),
        (["knn_k20_top1>80"], {"b"}),
        (["knn_k20_top1<=80"], {"a"}),
        (["optim.lr>=0"], {"a", "b"}),
        (["epoch=3.0", "method=byol"], {"b"}),
        (["left_s=null"], {"a", "b"}),
        (["left_s>1"], set()),
    ],
)
def test_conditions_choose_runs(where: list[str], names: set[str], tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1.0, knn_k20_top1=70.0)
    make_run(tmp_path / "b", 3.0, method="byol", knn_k20_top1=90.0)
    assert set(states(tmp_path, *where)) == names


def test_one_condition_needs_no_list(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1.0)
    make_run(tmp_path / "b", 3.0, method="byol")
    assert list(list_runs(tmp_path, "method=byol")["name"]) == ["b"]


def test_a_key_that_no_run_has_is_refused_with_the_nearest(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", 1.0, knn_k20_top1=70.0)
    for words in (
        ["--where", "knn_top1>80"],
        ["--best", "knn_top1"],
        ["--show", "knn_top1"],
        ["--page", "--best=knn_top1"],
    ):
        result = CliRunner().invoke(app, ["runs", str(tmp_path / "runs"), *words])
        assert isinstance(result.exception, ConfigError), words
        assert "no run has a number or setting 'knn_top1'; did you mean 'knn_k20_top1'?" in str(result.exception)


def test_what_is_no_condition_and_no_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'dino' is no condition; give key=value"):
        find_runs(str(tmp_path), ["dino"])
    with pytest.raises(ConfigError, match="'state=done': no run has the state 'done'; give one of running, finished"):
        find_runs(str(tmp_path), ["state=done"])
    with pytest.raises(ConfigError, match="'loss<one' compares with 'one', which is no number; give one"):
        find_runs(str(tmp_path), ["loss<one"])
    with pytest.raises(ConfigError, match="there is no folder"):
        find_runs(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.yaml", b"a: [1"),
        ("run.yaml", b"[" * 100_000),
        ("run.yaml", b"a: &x [1]\nb: *x"),
        ("run.yaml", b"\x00\xff"),
        ("events.jsonl", b"{\n"),
        ("report.json", b"[]"),
        ("report.json", b'{"metrics": 3}'),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(name: str, content: bytes, tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad", 1.0)
    (bad / name).write_bytes(content)
    make_run(tmp_path / "good", 1.0)
    assert states(tmp_path) == {"bad": "damaged", "good": "interrupted"}
    (run,) = find_runs(str(tmp_path), ["state=damaged"])
    assert name in run.reason


def test_a_damaged_line_of_metrics_is_told_beside_the_numbers_of_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 1.0, end="failed")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 15, \0\0\0\n{"step": 20, "epoch": 2.0, "loss": 1.5}\n')
    (row,) = json.loads(cli(str(tmp_path), "--json").stdout)
    assert (row["state"], row["step"], row["loss"]) == ("failed", 20, 1.5)
    assert row["reason"] == "failed because; metrics.jsonl has damaged lines, which are left out: 1 in its last 16 KB"


def test_the_table_has_a_row_for_each_run_and_a_column_for_each_number(tmp_path: Path) -> None:
    assert list(list_runs(tmp_path).columns)[:3] == ["name", "uri", "state"]
    make_run(tmp_path / "a", 1.0)
    run = make_run(tmp_path / "b", 1.0, knn_k20_top1=50.0)
    (run / "report.json").write_text(json.dumps({"metrics": {"knn/k20/top1": 60.0}}))
    os.utime(run / "metrics.jsonl", (time.time() + 60, time.time() + 60))
    table = raysl.list_runs(tmp_path)
    assert table["name"].tolist() == ["b", "a"]  # changed last first
    assert table["knn/k20/top1"].tolist()[0] == 60.0
    assert table["knn_k20_top1"].isna().tolist() == [False, True]


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, ["runs", *words])


@pytest.mark.thorough
def test_the_command_sorts_and_prints_json(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 1.0, knn_k20_top1=70.0)
    make_run(tmp_path / "b", 1.0, knn_k20_top1=90.0)
    make_run(tmp_path / "c", 1.0)
    found = json.loads(cli(str(tmp_path), "--best", "knn_k20_top1", "--json").stdout)
    assert [run["name"] for run in found] == ["b", "a"]
    lines = cli(str(tmp_path), "--least", "knn_k20_top1", "--show", "optim.lr").stdout.splitlines()
    assert lines[0].split()[-2:] == ["knn_k20_top1", "optim.lr"]
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert "no runs in" in cli(str(tmp_path), "--where", "method=dino").stdout


def test_why_a_run_fails_or_stops_is_noted(tmp_path: Path) -> None:
    folder = RunFolder(str(make_run(tmp_path / "a", 1.0)))
    with pytest.raises(RunFailed), noting_end(folder):
        raise RunFailed("the loss is nan at step 12")
    (run,) = find_runs(str(tmp_path))
    assert (run.state, run.reason) == ("failed", "the loss is nan at step 12")
    with pytest.raises(Stopped), noting_end(folder):
        raise Stopped("stopped at step 20 of 40")
    (run,) = find_runs(str(tmp_path))
    assert (run.state, run.reason) == ("stopped", "stopped at step 20 of 40")
