"""`python -m perf order`: cost of the order of samples for each process of a run over a billion images.

Nothing is read: a dataset of a billion rows in read units, a large batch and a thousand ranks are only counted through.
Some of the ranks are started as processes of their own, which import nothing but the order, build it, and ask for their
first batches: at the start of the run, at a resume in the middle of a later epoch, and at an epoch's end.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from perf.numbers import verdict
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.errors import RunFailed
from raysl.process.memory import most_resident

GOAL_MB, GOAL_S = 100.0, 1.0
NUM_BATCHES = 50


@dataclass(frozen=True, kw_only=True)
class OrderTask:
    """A run to simulate, and one of its ranks.

    Args:
        rows: of the dataset.
        unit_rows: of each read unit.
        batch_size: images in a global batch.
        lanes: fixed parts of it.
        world, rank: of the run.
    """

    rows: int = 1_000_000_000
    unit_rows: int = 1000
    batch_size: int = 32768
    lanes: int = 1024
    world: int = 1024
    rank: int = 0


def measure_order(task: OrderTask | None = None, ranks: Sequence[int] = (0, 511, 1023)) -> dict[str, Any]:
    """Memory and time of some ranks, each in a process of its own.

    Args:
        task: the run; its rank is not used.
        ranks: which to start.

    Returns:
        `memory_mb` (the most over ranks, beyond what the imports take), `process_mb` (with them), `first_batch_s`,
        `resume_s`, `epoch_turn_s` (the longest over ranks), `batch_ms` (median), `ranks` (all numbers of each), `task`.

    Raises:
        RunFailed: if a process fails.
    """
    task = task or OrderTask()
    found = []
    for rank in ranks:
        text = json.dumps(asdict(task) | {"rank": rank})
        done = subprocess.run([sys.executable, "-m", "perf.order", text], capture_output=True, text=True)
        if done.returncode:
            raise RunFailed(f"rank {rank} failed:\n{done.stderr[-2000:]}")
        found.append(json.loads(done.stdout))
    most = {name: max(numbers[name] for numbers in found) for name in found[0] if name != "batch_ms"}
    return {**most, "batch_ms": median(numbers["batch_ms"] for numbers in found), "ranks": found, "task": asdict(task)}


def order_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_order` as text."""
    task = numbers["task"]
    rows, units = task["rows"], -(-task["rows"] // task["unit_rows"])
    is_small, is_fast = numbers["memory_mb"] < GOAL_MB, numbers["first_batch_s"] < GOAL_S
    return "\n".join(
        [
            f"{rows:,} rows in {units:,} units, batch {task['batch_size']:,}, {task['world']:,} workers",
            f"memory of the order {numbers['memory_mb']:>8.1f} MB   goal under {GOAL_MB:.0f}: {verdict(is_small)}",
            f"the whole process   {numbers['process_mb']:>8.1f} MB",
            f"first batch         {numbers['first_batch_s']:>8.3f} s    goal under {GOAL_S:.0f}: {verdict(is_fast)}",
            f"resume in epoch 3   {numbers['resume_s']:>8.3f} s",
            f"turn of an epoch    {numbers['epoch_turn_s']:>8.3f} s",
            f"any other batch     {numbers['batch_ms']:>8.3f} ms",
        ]
    )


def simulate(task: OrderTask) -> dict[str, float]:
    """Measure one rank in this process."""
    before = most_resident() / 2**20
    start = time.perf_counter()
    order = _order(task)
    order.batch(0, task.rank, task.world)
    numbers = {"first_batch_s": time.perf_counter() - start}
    times = [_seconds(order, step, task) for step in range(1, NUM_BATCHES)]
    numbers["epoch_turn_s"] = max(_seconds(order, order.epoch_len - 1, task), _seconds(order, order.epoch_len, task))
    numbers["process_mb"] = most_resident() / 2**20
    numbers["memory_mb"] = numbers["process_mb"] - before
    start = time.perf_counter()
    resumed = _order(task)
    resumed.batch(3 * resumed.epoch_len + resumed.epoch_len // 2, task.rank, task.world)
    return numbers | {"resume_s": time.perf_counter() - start, "batch_ms": 1000 * median(times)}


def _order(task: OrderTask) -> Order:
    return Order(
        seed=0,
        fingerprint="simulated",
        unit_sizes=runs(task.rows, task.unit_rows),
        batch_size=task.batch_size,
        lanes=task.lanes,
        window=2048,
        is_exact=False,
    )


def _seconds(order: Order, step: int, task: OrderTask) -> float:
    start = time.perf_counter()
    order.batch(step, task.rank, task.world)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(simulate(OrderTask(**json.loads(sys.argv[1])))))
