"""Sweeps: what a space may be, and a driver that is killed in the middle."""

import csv
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysl.checkpoint import TrainState
from raysl.config.files import config_names
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunInUse
from raysl.leaderboard import Leaderboard, once, ranked
from raysl.methods.setup import Setup
from raysl.sweep_space import SweepConfig, dump_sweep, load_starts, load_sweep
from raysl.sweeps import _pretrained, _row, _starts, _trial_config, _trial_name
from raysl.sweeps import sweep as run_sweep
from raysl.train.folder.run_folder import RunFolder
from tests.data.samples import png
from tests.train.runs import SMALL, kill_driver

SPACE = """
config: quickstart
trials: 4
metric: knn_top1
scheduler: none
space:
  optim.lr: {loguniform: [0.05, 1.0]}
"""


def _write(folder: Path, text: str) -> str:
    path = folder / "search.yaml"
    path.write_text(text)
    return str(path)


def test_a_space_and_its_overrides_load(tmp_path: Path) -> None:
    sweep, rest = load_sweep(_write(tmp_path, SPACE), ["trials=2", "optim.weight_decay=0"])
    assert sweep == SweepConfig(trials=2, scheduler="none", space={"optim.lr": {"loguniform": [0.05, 1.0]}})
    assert rest == ["optim.weight_decay=0"]
    (tmp_path / "again.yaml").write_text(dump_sweep(sweep))
    assert load_sweep(str(tmp_path / "again.yaml"))[0] == sweep


def test_ranking_by_the_online_knn_needs_labels(tmp_path: Path) -> None:
    (tmp_path / "flat.png").write_bytes(png(0))
    base = load_config("quickstart", ["data=image_folder", f"data.path={tmp_path}", f"storage={tmp_path}/runs"])
    with pytest.raises(ConfigError, match="knn_top1 cannot be measured, the images of 'image_folder' have no labels"):
        run_sweep(base, SweepConfig(trials=1, space={"optim.lr": {"choice": [0.1]}}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: {}", "space is empty"),
        ("trails: 3\nspace: {optim.lr: {choice: [1]}}", "unknown key 'trails'"),
        ("space: {optim.lr: {normal: [0, 1]}}", "is no distribution; write one of {choice"),
        ("space: {optim.lr: {uniform: [1, 0]}}", "is no range"),
        ("space: {optim.lr: {loguniform: [0, 1]}}", "both above 0"),
        ("trials: 0\nspace: {optim.lr: {choice: [1]}}", "trials: 0 is out of range"),
        ("configs: [digits/simklr]", "no configuration 'digits/simklr'; did you mean 'digits/simclr'"),
        ("configs: [nowhere/*]", r"configs: no configuration 'nowhere/\*'; Known: "),
        ("configs: [moco, '!moco']", "leaves no configuration"),
        ("settings: [train.epochs=2]\nspace: {optim.lr: {choice: [1]}}", "settings are laid over configs"),
        ("metric: knn/top1\nspace: {optim.lr: {choice: [1]}}", "asha compares trials while they train"),
    ],
)
def test_bad_spaces_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(_write(tmp_path, text))


def test_configs_are_named_by_patterns_and_files_each_once(tmp_path: Path) -> None:
    mine = _write(tmp_path, SPACE)
    text = f"configs: [digits/mo*, digits/*, '!digits/[a-l]*', moco, {mine}]"
    (tmp_path / "zoo.yaml").write_text(text)
    sweep, _ = load_sweep(tmp_path / "zoo.yaml")
    *digits, moco, file = sweep.configs
    assert (moco, file) == ("moco", mine)
    assert digits[0] == "digits/moco", "in the order in which they are named"
    assert len(set(digits)) == len(digits)
    assert set(digits) == {name for name in config_names() if name.startswith("digits/") and name[7] > "l"}
    (tmp_path / "again.yaml").write_text(dump_sweep(sweep))
    assert load_sweep(tmp_path / "again.yaml")[0] == sweep


def test_settings_are_laid_over_each_config_and_what_is_wrong_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "zoo.yaml").write_text(
        "configs: [digits/simclr, digits/moco]\nsettings: [train.epochs=3, data.limit=64]"
    )
    sweep, rest = load_sweep(tmp_path / "zoo.yaml", ["train.epochs=4"])
    starts = load_starts(sweep, rest)
    assert {name: (start.method.name, start.train.epochs, start.data.limit) for name, start in starts.items()} == {
        "digits/simclr": ("simclr", 4, 64),
        "digits/moco": ("moco", 4, 64),
    }
    with pytest.raises(ConfigError, match=r"^digits/moco: .*queue_sizes") as told:
        load_starts(SweepConfig(configs=["digits/moco"]), ["method.queue_sizes=3"])
    assert "digits/simclr" not in str(told.value)


def test_a_config_that_cannot_run_is_told_of_before_anything_starts(tmp_path: Path) -> None:
    base = load_config("quickstart", [f"storage={tmp_path}/runs", "name=zoo"])
    uneven = SweepConfig(configs=["digits/simclr", "digits/moco"], settings=["train.batch_size=1"], scheduler="none")
    with pytest.raises(ConfigError, match=r"^digits/simclr: train.batch_size is 1; SimCLR contrasts images"):
        run_sweep(base, uneven)
    varied = SweepConfig(configs=["digits/simclr"], space={"method.queue_length": {"choice": [64]}}, scheduler="none")
    with pytest.raises(ConfigError, match=r"^digits/simclr: .*queue_length"):
        run_sweep(base, varied)
    assert not (tmp_path / "runs").exists()


def test_a_trial_departs_from_the_config_that_it_names(tmp_path: Path) -> None:
    bases = load_starts(SweepConfig(configs=["digits/simclr", "digits/moco"]))
    folder = RunFolder(str(tmp_path))
    runs = [_trial_config(bases, folder, {"config": name, "optim.lr": 0.25}) for name in bases]
    assert [(run.method.name, run.optim.lr) for run in runs] == [("simclr", 0.25), ("moco", 0.25)]
    assert len({run.name for run in runs}) == 2
    assert _starts(bases) == {"config": {"grid": list(bases)}}
    alone = {"": load_config("quickstart")}
    assert _starts(alone) == {}
    assert _trial_config(alone, folder, {"optim.lr": 0.25}).optim.lr == 0.25


def test_a_row_tells_the_metric_beside_that_of_the_untrained_network(tmp_path: Path) -> None:
    bases = {"": load_config("quickstart", ["train.epochs=2"])}
    metrics = {"epoch": 2.0, "knn/top1": 60.0, "knn/top1/untrained": 40.0, "knn/top1/pixels": 50.0, "knn/top5": 90.0}
    result = SimpleNamespace(metrics=metrics, config={"optim.lr": 0.25}, error=None)
    row = _row(RunFolder(str(tmp_path)), result, SweepConfig(metric="knn/top1"), bases)
    assert row["status"] == "finished"
    told = [(name, row[name]) for name in row if name.startswith(("knn", "optim"))]
    assert told == [("knn/top1", 60.0), ("knn/top1/untrained", 40.0), ("optim.lr", 0.25), ("knn/top5", 90.0)]


def test_columns_that_only_some_runs_have_are_in_the_table() -> None:
    rows = [{"trial": "a", "step_s": 0.5, "path": "p"}, {"trial": "b", "knn/top1": 90.0, "step_s": 0.25, "path": "p"}]
    table = Leaderboard(rows, "x.csv").table().splitlines()
    assert table[0].split() == ["trial", "knn/top1", "step_s"]
    assert table[2].split() == ["b", "90", "0.25"]


def test_trials_are_named_by_their_settings_alone() -> None:
    assert _trial_name({"a": 1, "b": 2.5}) == _trial_name({"b": 2.5, "a": 1}) != _trial_name({"a": 1, "b": 2.0})


def test_best_trial_comes_first_and_one_without_a_number_last() -> None:
    rows = [{"trial": name, "knn_top1": value} for name, value in (("a", 90.0), ("b", None), ("c", 95.0))]
    best = ranked(rows, "knn_top1", "max")
    assert [(row["rank"], row["trial"]) for row in best] == [(1, "c"), (2, "a"), (3, "b")]
    assert [row["trial"] for row in ranked(rows, "knn_top1", "min")] == ["a", "c", "b"]
    assert Leaderboard(best, "x.csv").table().splitlines()[1].split() == ["c", "95", "1"]


def test_credentials_do_not_change_the_name_of_a_trial() -> None:
    uris = ("s3://K:S@bucket", "s3://***@bucket", "s3://bucket")
    assert len({_trial_name({"data.path": uri}) for uri in uris}) == 1


def test_the_second_of_two_equal_draws_waits_and_takes_the_result_of_the_first(tmp_path: Path) -> None:
    small = [option for option in SMALL if not option.startswith("train.epochs")]
    config = load_config("quickstart", [*small, "train.epochs=1", f"storage={tmp_path}", "name=trial_1"])
    folder = RunFolder.of(config)
    folder.make()
    state = TrainState.create(Setup.of(config, 256, 10))
    waits = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: waits.set() if "waits for" in record.getMessage() else None  # type: ignore[method-assign]
    log = logging.getLogger("raysl")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with ThreadPoolExecutor(1) as pool:
            with folder.locked():
                with pytest.raises(RunInUse), folder.locked():
                    pass
                second = pool.submit(_pretrained, config)
                assert waits.wait(60), "the second draw does not wait"
                folder.claim(config)
                state.step = 8
                folder.write("metrics.jsonl", b'{"step": 8, "loss": 2.5}\n')
                state.save(Path(folder.path) / "checkpoint_000000008", {})
                assert not second.done()
            assert second.result(60).metrics["loss"] == 2.5
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def test_a_run_that_several_trials_had_stands_once_on_the_leaderboard() -> None:
    told = [
        ("a", "finished", 3.0, 90.0),
        ("b", "finished", 3.0, 80.0),
        ("a", "stopped", 1.0, 50.0),
        ("c", "failed", None, None),
    ]
    rows = [dict(zip(("trial", "status", "epoch", "knn_top1"), row, strict=True)) for row in told]
    best = ranked(once(rows), "knn_top1", "max")
    assert [(row["trial"], row["status"], row["draws"], row["knn_top1"]) for row in best] == [
        ("a", "finished", 2, 90.0),
        ("b", "finished", 1, 80.0),
        ("c", "failed", 1, None),
    ]


@pytest.mark.slow
def test_a_sweep_that_draws_the_same_twice_has_one_run(tmp_path: Path) -> None:
    space = _write(
        tmp_path, SPACE.replace("trials: 4", "trials: 2").replace("{loguniform: [0.05, 1.0]}", "{choice: [0.5]}")
    )
    small = [option for option in SMALL if not option.startswith(("train.online", "benchmarks"))]
    command = [sys.executable, "-m", "raysl", "sweep", space, *small, "train.epochs=2", f"storage={tmp_path}", "name=s"]
    done = subprocess.run([*command, "concurrent=2", "benchmarks=[]"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader((tmp_path / "s" / "leaderboard.csv").open())
    assert (row["rank"], row["status"], row["draws"], row["optim.lr"]) == ("1", "finished", "2", "0.5")
    (run,) = (tmp_path / "s").glob("trial_*")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 16, "its 16 steps were trained once"


@pytest.mark.slow
def test_a_sweep_over_two_configs_has_one_table_with_measurements_and_costs(tmp_path: Path) -> None:
    (tmp_path / "zoo.yaml").write_text(
        "configs: [digits/simclr, digits/rotnet]\n"
        "settings: [train.epochs=2, data.limit=256, backbone.width=8, 'benchmarks=[knn]']\n"
        "metric: knn/top1\nscheduler: none\nconcurrent: 1\n"
    )
    command = [sys.executable, "-m", "raysl", "sweep", str(tmp_path / "zoo.yaml"), f"storage={tmp_path}/runs"]
    for attempt in range(2):
        done = subprocess.run([*command, "train.threads=1"], capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader((tmp_path / "runs" / "zoo" / "leaderboard.csv").open()))
        assert {row["config"] for row in rows} == {"digits/simclr", "digits/rotnet"}
        assert [row["status"] for row in rows] == ["finished"] * 2
        assert all(float(row[name]) > 0 for row in rows for name in ("knn/top1", "step_s", "memory_gb"))
        assert {row["config"] for row in rows if row["embedding_std"]} >= {"digits/simclr"}
        assert "digits/rotnet" in done.stdout
        assert ("the sweep goes on" in done.stderr) == bool(attempt)


@pytest.mark.slow
def test_a_killed_sweep_started_again_ends_with_one_table(tmp_path: Path) -> None:
    small = [option for option in SMALL if not option.startswith(("train.online", "benchmarks"))]
    command = [sys.executable, "-m", "raysl", "sweep", _write(tmp_path, SPACE), *small, f"storage={tmp_path}", "name=s"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 240
    while len(list((tmp_path / "s").glob("trial_*/report.html"))) < 2:
        assert time.monotonic() < end
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    kill_driver(first)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "the sweep goes on" in done.stderr
    rows = list(csv.DictReader((tmp_path / "s" / "leaderboard.csv").open()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    assert {row["status"] for row in rows} == {"finished"}
    assert len({row["optim.lr"] for row in rows}) == len(list((tmp_path / "s").glob("trial_*"))) == 4
    values = [float(row["knn_top1"]) for row in rows]
    assert values == sorted(values, reverse=True)
