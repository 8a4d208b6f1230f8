"""A run and a sweep may have any name, in a folder of any name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.runs.callbacks import tags_of
from tests.runs.runs import SMALL, finish, logged_step, start

NAME = "ü 50% \"1\" #2 +'3'"


def test_the_tags_of_metrics_are_ascii_for_runs_and_trials() -> None:
    config = load_config("quickstart", ["name=ü", "storage=/x/süß/"])
    assert tags_of(config, is_trial=False) == {"run": "%C3%BC", "trial": ""}
    assert tags_of(config, is_trial=True) == {"run": "s%C3%BC%C3%9F", "trial": "%C3%BC"}


@pytest.mark.slow
def test_a_run_of_any_name_trains_in_a_folder_of_any_name(tmp_path: Path) -> None:
    storage = tmp_path / "süß"
    finish(start(storage, f"'{NAME.replace(chr(39), chr(39) * 2)}'", "train.epochs=1"))
    assert logged_step(storage / NAME) == 8


@pytest.mark.slow
def test_a_sweep_of_any_name_trains_in_a_folder_of_any_name(tmp_path: Path) -> None:
    sweep = tmp_path / "search.yaml"
    sweep.write_text(
        "config: quickstart\nscheduler: none\nspace: {optim.lr: {choice: [0.1]}}\ntrials: 1\nmetric: loss\nmode: min\n"
    )
    words = [*SMALL, "train.epochs=1", f"storage={tmp_path}/süß", "name=größe 1"]
    done = subprocess.run(
        [sys.executable, "-m", "raysl", "sweep", str(sweep), *words], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    (metrics,) = (tmp_path / "süß" / "größe 1").glob("trial_*/metrics.jsonl")
    assert json.loads(metrics.read_text().splitlines()[-1])["step"] == 8
