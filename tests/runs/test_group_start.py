"""What a worker says of its start in the run's events."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raysl.config.load import load_config
from raysl.plan.plan import TrainPlan
from raysl.runs.group_start import announce
from raysl.train.disk import Disk


@pytest.mark.parametrize(
    ("device", "deterministic", "is_told"), [("cuda", "false", True), ("cuda", "true", False), ("cpu", "false", False)]
)
def test_gpu_runs_are_told_that_they_do_not_repeat(
    device: str, deterministic: str, is_told: bool, tmp_path: Path
) -> None:
    config = load_config("quickstart", [f"train.deterministic={deterministic}"])
    state = SimpleNamespace(step=0, device=torch.device(device), config=config)
    announce(TrainPlan.from_config(config, 1000), state, [], Disk(tmp_path))
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events[0].startswith(f"started on 1 worker on {device}")
    said = "GPU runs do not repeat bit for bit without train.deterministic=true"
    assert (said in events) is is_told


def test_an_elastic_run_says_when_it_goes_on_with_fewer_workers_and_with_all_again(tmp_path: Path) -> None:
    config = load_config("quickstart", ["train.workers=[1,3]"])
    for step, world in [(0, 2), (5, 3), (10, 3), (20, 2), (30, 1), (40, 3), (50, 3)]:
        state = SimpleNamespace(step=step, device=torch.device("cpu"), config=config)
        announce(TrainPlan.from_config(config, 1000, world), state, [], Disk(tmp_path))
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event for event in events if event.endswith("workers")] == [
        "starting with 2 of 3 workers",
        "going on from step 5 with all 3 workers",
        "going on from step 20 with 2 of 3 workers",
        "going on from step 30 with 1 of 3 workers",
        "going on from step 40 with all 3 workers",
    ]
