"""Sweeps on Ray: killed drivers, equal draws, failures, and what they leave."""

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raysl.checkpoint.backbone import load_backbone
from raysl.leaderboard.entry import Entry
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.status import status_of
from tests.runs.runs import SMALL, kill_driver

SWIFT = [option for option in SMALL if not option.startswith(("train.online", "train.epochs", "train.checkpoint"))]
SPACE = """
trials: 6
scheduler: none
metric: knn_k20_top1
space:
  optim.lr: {loguniform: [0.01, 2.0]}
  method.temperature: {uniform: [0.1, 0.5]}
"""
EVERY_EPOCH = "train.online_knn_every=1ep"
WAYS = {
    "asha": ["scheduler=asha", "scheduler_args={reduction_factor: 2}"],
    "hyperband": ["scheduler=hyperband", "scheduler_args={reduction_factor: 2}"],
    "median": ["scheduler=median", "scheduler_args={min_samples_required: 2}"],
    "pbt": ["scheduler=pbt", "scheduler_args={perturbation_interval: 2}"],
    "optuna": ["search=optuna", "concurrent=1"],
    "paths": [
        "search=ray.tune.search.optuna.OptunaSearch",
        "scheduler=ray.tune.schedulers.AsyncHyperBandScheduler",
        "scheduler_args={reduction_factor: 2}",
    ],
}


def _command(folder: Path, text: str, *more: str) -> list[str]:
    (folder / "search.yaml").write_text(text)
    own = [f"storage={folder}", "name=s", "train.checkpoint_every=1ep", "train.epochs=8"]
    return [sys.executable, "-m", "raysl", "sweep", str(folder / "search.yaml"), *SWIFT, *own, *more]


def _done(command: list[str], timeout: float = 900) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _table(folder: Path) -> list[tuple]:
    """What the leaderboard says of each run, but for what it cost."""
    return [
        (run.trial, run.status, run.epoch, run.settings, run.seed, run.reason, {**run.course, "seconds": None})
        for run in sorted(_entries(folder), key=lambda run: run.index)
    ]


def _entries(folder: Path) -> list[Entry]:
    return Leaderboard.load(str(folder / "s")).entries


def _killed_once(folder: Path, command: list[str], has_come: Callable[[], bool]) -> None:
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 600
    while not has_come():
        assert time.monotonic() < end
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.05)
    kill_driver(driver)


def _num_notes(folder: Path) -> int:
    return len(list((folder / "s").glob("trial_*/trial.json")))


@pytest.mark.slow
def test_a_sweep_whose_driver_is_killed_twice_ends_with_the_table_of_an_undisturbed_one(tmp_path: Path) -> None:
    tables = []
    for name, kills in (("calm", ()), ("killed", (1, 4))):
        folder = tmp_path / name
        folder.mkdir()
        command = _command(folder, SPACE)
        for num in kills:
            _killed_once(folder, command, lambda folder=folder, num=num: _num_notes(folder) >= num)
        said = _done(command)
        assert ("the sweep goes on" in said) == bool(kills)
        tables.append(_table(folder))
    assert tables[0] == tables[1]
    assert len(tables[0]) == 6
    assert {status for _, status, *_ in tables[0]} == {"finished"}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_a_killed_sweep_has_trained_is_lost_or_trained_again(tmp_path: Path, way: str) -> None:
    command = _command(tmp_path, SPACE, EVERY_EPOCH, *WAYS[way])
    _killed_once(tmp_path, command, lambda: _num_notes(tmp_path) >= 2)
    ended = {path: path.read_bytes() for path in (tmp_path / "s").glob("trial_*/metrics.jsonl")}
    ended = {path: lines for path, lines in ended.items() if (path.parent / "trial.json").exists()}
    _done(command)
    entries = _entries(tmp_path)
    assert {run.status for run in entries} <= {"finished", "stopped"}
    assert any(run.status == "finished" and run.epoch == 8 for run in entries)
    for path, lines in ended.items():
        assert path.read_bytes().startswith(lines), "what was trained stays as it was"
    steps = [
        [json.loads(line)["step"] for line in path.read_text().splitlines()]
        for path in (tmp_path / "s").glob("trial_*/metrics.jsonl")
    ]
    assert all(own == sorted(set(own)) for own in steps), "each step is logged once"


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_one_that_is_done_runs_nothing(tmp_path: Path) -> None:
    command = _command(tmp_path, SPACE, "trials=3", "train.epochs=2")
    _killed_once(tmp_path, command, lambda: _num_notes(tmp_path) > 0)
    assert "the sweep goes on" in _done(command)
    before = _table(tmp_path)
    assert len(before) == 3
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("trial_*/*")}
    assert "3 trials ended before" in _done(command)
    assert _table(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("trial_*/*")} == written


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_saves_says_so_on_its_page_and_goes_on(tmp_path: Path) -> None:
    command = _command(tmp_path, SPACE, "trials=2", "scheduler=none", "train.epochs=60")
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list((tmp_path / "s").glob("trial_*/checkpoint_*/meta.json")):
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 130, said
    assert "2 trials to run, 1 at a time; about " in said
    assert "stopped after 0 trials; the same command runs those that are left" in said
    page = (tmp_path / "s" / "leaderboard.html").read_text()
    assert "The sweep was stopped before its end." in page
    assert 'http-equiv="refresh"' not in page
    assert (
        status_of(str(tmp_path / "s"))
        .line()
        .endswith("no process runs it; the command that started it runs the trials that are left")
    )
    _done(command)
    assert [run.status for run in _entries(tmp_path)] == ["finished", "finished"]


@pytest.mark.slow
def test_two_trials_at_a_time_end_with_the_table_of_one(tmp_path: Path) -> None:
    tables = []
    for concurrent in (1, 2):
        folder = tmp_path / str(concurrent)
        folder.mkdir()
        _done(_command(folder, SPACE, "trials=4", f"concurrent={concurrent}", "train.epochs=4"))
        tables.append(_table(folder))
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_seeds_configs_and_benchmarks_grow_and_only_what_is_missing_runs(tmp_path: Path) -> None:
    text = (
        "configs: [digits/simclr, digits/rotnet]\n"
        "settings: [train.epochs=2, data.limit=256, backbone.width=8, train.threads=1]\n"
        "benchmarks: [knn]\nmetric: knn/k20/top1\nscheduler: none\nconcurrent: 1\n"
    )
    (tmp_path / "zoo.yaml").write_text(text)
    command = [sys.executable, "-m", "raysl", "sweep", str(tmp_path / "zoo.yaml"), f"storage={tmp_path}", "name=s"]
    _done(command)
    first = {run.trial: run for run in _entries(tmp_path)}
    assert {run.config for run in first.values()} == {"digits/simclr", "digits/rotnet"}
    assert all(run.status == "finished" and run.intervals["knn/k20/top1"] for run in first.values())
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("trial_*/metrics.jsonl")}
    _done([*command, "benchmarks=[knn, low_shot]", "seeds=2"])
    second = {run.trial: run for run in _entries(tmp_path)}
    assert len(second) == 4
    assert all("low_shot/5_shot" in run.metrics for run in second.values())
    for name, run in first.items():
        assert second[name].metrics["knn/k20/top1"] == run.metrics["knn/k20/top1"]
    assert {path: path.stat().st_mtime_ns for path in trained} == trained, "no run was trained again"
    (best, *_) = csv.DictReader((tmp_path / "s" / "leaderboard.csv").open())
    assert float(best["knn/k20/top1: deviation"]) >= 0


@pytest.mark.slow
def test_a_population_goes_on_from_the_weights_of_its_best(tmp_path: Path) -> None:
    text = (
        "trials: 4\nscheduler: pbt\nmetric: loss\nmode: min\n"
        "scheduler_args: {perturbation_interval: 2, quantile_fraction: 0.5}\n"
        "space: {optim.lr: {loguniform: [0.001, 4.0]}, method.temperature: {uniform: [0.2, 0.6]}}\n"
    )
    _done(_command(tmp_path, text, "train.epochs=6", "train.keep_checkpoints=9"))
    entries = {run.trial: run for run in _entries(tmp_path)}
    heirs = [run for run in entries.values() if run.parents]
    assert heirs, "nobody was replaced"
    replaced = [run for run in entries.values() if run.status == "stopped"]
    assert len(replaced) == len(heirs)
    assert len([run for run in entries.values() if run.status == "finished"]) == 4
    for heir in heirs:
        parent, epoch = heir.parents[0]
        step = int(epoch) * (256 // 32)
        own, theirs = (
            torch.load(tmp_path / "s" / name / f"checkpoint_{step:09d}" / "train_state.pt", weights_only=True)
            for name in (heir.trial, parent)
        )
        assert own["method"].keys() == theirs["method"].keys()
        for name, value in own["method"].items():
            assert torch.equal(value, theirs["method"][name]), f"{name} is not that of the donor"
        assert heir.settings != entries[parent].settings
        before = [value for at, value in entries[parent].course["loss"] if at <= epoch]
        assert [value for at, value in heir.course["loss"] if at <= epoch] == before, "its history is its parent's"
        load_backbone(str(tmp_path / "s" / heir.trial))


@pytest.mark.slow
def test_a_trial_that_fails_is_marked_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    text = (
        "scheduler: none\nmetric: loss\nmode: min\n"
        "space: {train.expect: {grid: [{loss: [0, 99]}, {loss: [0, 0.001]}]}}\n"
    )
    _done(_command(tmp_path, text, "train.epochs=2", "retries=0"))
    good, bad = sorted(_entries(tmp_path), key=lambda run: run.index)
    assert good.status == "finished"
    assert bad.status == "failed"
    assert "outside [0, 0.001]" in bad.reason
    assert json.loads((tmp_path / "s" / bad.trial / "trial.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_checkpoints_are_measured_with_seeds_and_not_trained(tmp_path: Path) -> None:
    for name, lr in (("one", 0.01), ("two", 0.5)):
        options = [*SWIFT, f"storage={tmp_path}", f"name={name}", "train.epochs=1", f"optim.lr={lr}"]
        _done([sys.executable, "-m", "raysl", "pretrain", "quickstart", *options, "train.checkpoint_every=1ep"])
    text = (
        f"checkpoints: [{tmp_path}/one, {tmp_path}/two]\nbenchmarks: [knn, low_shot]\nseeds: 2\n"
        "metric: low_shot/5_shot\nscheduler: none\nspace: {benchmarks.knn.k: {grid: [[5], [20]]}}\n"
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
    (tmp_path / "search.yaml").write_text(text)
    command = [sys.executable, "-m", "raysl", "sweep", str(tmp_path / "search.yaml"), f"storage={tmp_path}", "name=s"]
    _done(command)
    entries = _entries(tmp_path)
    assert len(entries) == 8
    assert {run.config for run in entries} == {f"{tmp_path}/one", f"{tmp_path}/two"}
    assert {run.seed for run in entries} == {0, 1}
    assert len({run.metrics["low_shot/5_shot"] for run in entries}) > 1
    assert {path: path.stat().st_mtime_ns for path in before} == before, "the runs are as they were"
    assert "8 trials ended before" in _done(command)
