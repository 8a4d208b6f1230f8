"""Training that waits for data says so once, with what may help."""

import json
from pathlib import Path

from raysl.config.load import load_config
from raysl.plan.setup import Setup
from raysl.train import TrainPlan
from raysl.train.callbacks.callback import Run
from raysl.train.callbacks.watch import DataWait
from raysl.train.disk import Disk
from raysl.train.state import TrainState


def _events(folder: Path, shares: list[float]) -> list[str]:
    config = load_config("quickstart", ["backbone.num_stages=1", "backbone.width=4"])
    run = Run(TrainState.create(Setup.of(config, 64, 0)), TrainPlan.from_config(config, 640))
    callback = DataWait(Disk(folder), augment_in_task=True)
    for number, share in enumerate(shares):
        callback.on_log(run, run.plan.step(number), {"data_wait": share})
    file = folder / "events.jsonl"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


def test_a_lasting_wait_is_told_of_once_with_its_share_and_a_way_out(tmp_path: Path) -> None:
    (event,) = _events(tmp_path, [0.9, *[0.41] * 20])
    assert event.startswith("data wait 51%: training waits for images; add CPU nodes")
    assert "data.augment_on=device" in event


def test_a_slow_start_and_a_lone_hiccup_are_no_starvation(tmp_path: Path) -> None:
    assert _events(tmp_path, [0.9, 0.9, 0.9, 0.01, *[0.05] * 10, 0.8, *[0.05] * 10]) == []
