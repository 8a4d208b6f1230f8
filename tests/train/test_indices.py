"""An interrupted run consumes the samples that an undisturbed one does, whatever its number of workers."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raysl.config.load import load_config
from raysl.train.prepare import prepare
from tests.runs.runs import SMALL, finish, kill_driver, start, wait_for_step

RECORDER = '''\
"""SimCLR that writes down which samples each rank gets at each step."""

import json
from dataclasses import dataclass
from pathlib import Path

from raysl import distributed as dist
from raysl.methods.simclr import SimCLR


class Recorder(SimCLR):
    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        folder: str
        """Where to write."""

    def training_step(self, batch, step):
        path = Path(self.config.folder) / f"{dist.world()}_{dist.rank()}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps([step.index, batch.index.tolist()]) + "\\n")
        return super().training_step(batch, step)
'''
STEPS = 40  # two epochs of 20


def _run(folder: Path, name: str, cifar10: Path, workers: int, num: int) -> list[str]:
    (folder / name).mkdir(exist_ok=True)
    return [
        f"method.name={folder}/recorder.py:Recorder",
        f"method.folder={folder / name}",
        "data=parquet",
        f"data.path={cifar10}",
        f"data.limit={num}",
        f"train.batch_size={num // 20}",
        "train.epochs=2",
        "data.image_size=16",
        "method.views.size=16",
        "backbone.num_stages=1",
        "backbone.width=4",
        f"train.workers={workers}",
        "train.cpus_per_worker=0.2",
        "train.uneven=true",
    ]


def _indices(folder: Path, world: int) -> dict[int, list[int]]:
    """Global batches that all ranks have begun, by step."""
    ranks = []
    for rank in range(world):
        lines = (folder / f"{world}_{rank}.jsonl").read_text().splitlines()
        ranks.append(dict(json.loads(line) for line in lines))
    steps = set.intersection(*(set(rank) for rank in ranks))
    return {step: [index for rank in ranks for index in rank[step]] for step in sorted(steps)}


def _undisturbed(folder: Path, cifar10: Path, num: int) -> dict[int, list[int]]:
    """Global batches that a run of one worker consumes, by step."""
    finish(start(folder / "runs", "calm", *_run(folder, "calm", cifar10, 1, num)))
    return _indices(folder / "calm", 1)


def _planned(folder: Path, cifar10: Path, num: int) -> dict[int, list[int]]:
    """The same without a run: what one process reads."""
    order = prepare(load_config("quickstart", [*SMALL, *_run(folder, "calm", cifar10, 1, num)])).loader.order
    return {step: order.batch(step).tolist() for step in range(STEPS)}


@pytest.mark.slow
@pytest.mark.parametrize(("calmly", "num", "seed"), [(_planned, 50_000, 0), (_undisturbed, 5_000, 1)])
def test_two_workers_resumed_as_three_consume_the_indices_of_one(
    tmp_path: Path, cifar10: Path, calmly: Callable[[Path, Path, int], dict[int, list[int]]], num: int, seed: int
) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    runs = tmp_path / "runs"
    calm = calmly(tmp_path, cifar10, num)
    process = start(runs, "hit", *_run(tmp_path, "hit", cifar10, 2, num))
    wait_for_step(runs / "hit", random.Random(seed).randint(7, 30), process)
    kill_driver(process)
    output = finish(start(runs, "hit", *_run(tmp_path, "hit", cifar10, 3, num)))

    (resumed,) = map(int, re.findall(r"resumed at step (\d+) on 3 worker", output))
    before, after = (_indices(tmp_path / "hit", world) for world in (2, 3))
    assert list(calm) == list(range(STEPS))
    assert list(after) == list(range(resumed, STEPS))
    assert list(before) == list(range(len(before)))
    assert len(before) >= resumed > 0
    for part in (before, after):
        assert all(indices == calm[step] for step, indices in part.items())
    for epoch in range(2):
        seen = np.concatenate([calm[step] for step in range(20 * epoch, 20 * epoch + 20)])
        np.testing.assert_array_equal(np.sort(seen), np.arange(num))
