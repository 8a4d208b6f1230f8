"""A run that lost a worker and its driver ends as one that lost nothing, bit for bit."""

import random
from pathlib import Path

import pytest

from raysl.train.callbacks.logs import parse_metrics
from tests.runs.runs import assert_same, finish, kill_driver, kill_worker, start, tensors, wait_for_step

WORKERS = {1: (), 2: (), 3: ("train.cpus_per_worker=0.3", "train.uneven=true")}


def _disturbed_equals_undisturbed(folder: Path, workers: int, seed: int) -> None:
    options = (f"train.workers={workers}", *WORKERS[workers])
    draw = random.Random(seed)
    finish(start(folder, "calm", *options))

    process = start(folder, "hit", *options)
    wait_for_step(folder / "hit", draw.randint(6, 18), process)
    kill_worker(process)
    wait_for_step(folder / "hit", 6, process)
    wait_for_step(folder / "hit", draw.randint(22, 32), process)
    kill_driver(process)
    output = finish(start(folder, "hit", *options))

    assert "resumed at step" in output
    assert_same(tensors(folder / "calm"), tensors(folder / "hit"))
    calm, hit = (parse_metrics((folder / name / "metrics.jsonl").read_bytes()) for name in ("calm", "hit"))
    assert [line["step"] for line in calm] == [line["step"] for line in hit] == list(range(1, 41))
    assert [line["loss"] for line in calm] == [line["loss"] for line in hit]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_losing_one_and_the_driver_change_no_bit(tmp_path: Path, workers: int) -> None:
    _disturbed_equals_undisturbed(tmp_path, workers, seed=workers)
