"""`python -m perf order`: cost of the order of samples for each process of a run over a billion images.

Nothing is read: a dataset of a billion rows in read units, a large batch and a thousand ranks are only counted through.
Some of the ranks are started as processes of their own, which import nothing but the order, build it, and ask for their
first batches: at the start of the run, at a resume in the middle of a later epoch, and at an epoch's end.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from perf.harness import Numbers, child_numbers, verdict
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.process.memory import most_resident

GOAL_MB, GOAL_S = 100.0, 1.0
NUM_BATCHES = 50


@dataclass(frozen=True, kw_only=True)
class OrderTask:
    """A run to simulate, and one of its ranks."""

    rows: int = 1_000_000_000
    unit_rows: int = 1000  # of each read unit
    batch_size: int = 32768  # of all ranks
    lanes: int = 1024
    world: int = 1024
    rank: int = 0

    def order(self) -> Order:
        """Return the order of the run."""
        units = runs(self.rows, self.unit_rows)
        return Order(0, "simulated", units, self.batch_size, self.lanes, window=2048, is_exact=False)


def measure() -> Numbers:
    """Measure the order of a run, and count the reads of ImageNet's shape."""
    from perf.reads import measure_reads  # here, because the processes of the ranks import this file

    task = OrderTask()
    return measure_order(task, ranks=(0, task.world // 2, task.world - 1)) | measure_reads()


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    from perf.reads import reads_table

    return f"{order_table(numbers)}\n\n{reads_table(numbers)}"


def measure_order(task: OrderTask, ranks: Sequence[int]) -> Numbers:
    """Measure memory and time of some ranks of a run, each in a process of its own.

    Returns:
        `memory_mb` (the most over ranks, beyond what the imports take), `process_mb` (with them), `first_batch_s`,
        `resume_s`, `epoch_turn_s` (the longest over ranks), `batch_ms` (median), `ranks` (all numbers of each), `task`.
    """
    settings = asdict(task)
    measured = [child_numbers(simulate, settings | {"rank": rank}, f"rank {rank}") for rank in ranks]
    most = {name: max(numbers[name] for numbers in measured) for name in measured[0]}
    return {**most, "batch_ms": median(one["batch_ms"] for one in measured), "ranks": measured, "task": settings}


def order_table(numbers: Numbers) -> str:
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


def simulate(**settings: int) -> dict[str, float]:
    """Measure one rank of an `OrderTask` in this process."""
    task = OrderTask(**settings)

    def seconds(order: Order, step: int) -> float:
        start = time.perf_counter()
        order.batch(step, task.rank, task.world)
        return time.perf_counter() - start

    before = most_resident() / 2**20
    start = time.perf_counter()
    order = task.order()
    order.batch(0, task.rank, task.world)
    numbers = {"first_batch_s": time.perf_counter() - start}
    times = [seconds(order, step) for step in range(1, NUM_BATCHES)]
    numbers["epoch_turn_s"] = max(seconds(order, order.epoch_len - 1), seconds(order, order.epoch_len))
    numbers["process_mb"] = most_resident() / 2**20
    numbers["memory_mb"] = numbers["process_mb"] - before
    start = time.perf_counter()
    resumed = task.order()
    resumed.batch(3 * resumed.epoch_len + resumed.epoch_len // 2, task.rank, task.world)
    return numbers | {"resume_s": time.perf_counter() - start, "batch_ms": 1000 * median(times)}
