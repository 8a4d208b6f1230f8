"""What a worker says of its start in the run's events."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raysl.config.load import load_config
from raysl.plan.plan import TrainPlan
from raysl.runs.worker import _announce


@pytest.mark.parametrize(
    ("device", "deterministic", "is_told"), [("cuda", "false", True), ("cuda", "true", False), ("cpu", "false", False)]
)
def test_gpu_runs_are_told_that_they_do_not_repeat(
    device: str, deterministic: str, is_told: bool, tmp_path: Path
) -> None:
    config = load_config("quickstart", [f"train.deterministic={deterministic}"])
    state = SimpleNamespace(step=0, device=torch.device(device), config=config)
    _announce(TrainPlan.from_config(config, 1000), state, tmp_path)
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events[0].startswith(f"started on 1 worker(s) on {device}")
    said = "GPU runs do not repeat bit for bit without train.deterministic=true"
    assert (said in events) is is_told
