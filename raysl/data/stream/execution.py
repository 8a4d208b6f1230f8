"""One Ray Data execution: numbered blocks, made by stateless tasks and dealt out to the ranks in turn."""

import logging
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray.cloudpickle
import ray.data
from ray.data import DataContext, Datasource, ExecutionResources, ReadTask
from ray.data.block import BlockMetadata

REST_S = 0.01
COLUMN = "number"


def dealt_blocks(
    make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    num_blocks: int,
    world: int,
    task_cpus: float,
    buffer_bytes: int | None,
) -> list[Any]:
    """Start an execution that nothing runs of until its blocks are asked for.

    Args:
        make: from the column `number`, one row, to the columns of a block; runs in a task.
        num_blocks: in all.
        world: ranks; block i goes to rank i mod world, as long as blocks have equal rows.
        task_cpus: CPUs that each task takes.
        buffer_bytes: of Ray's object store that blocks may fill before tasks wait; None leaves it to Ray.

    Returns:
        An iterator over blocks for each rank.
    """
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = None  # a block that Ray splits would not be dealt out in turn
    context.execution_options.preserve_order = True
    if Rest not in context.custom_execution_callback_classes:
        context.custom_execution_callback_classes.append(Rest)
    if buffer_bytes is not None:
        limits = ExecutionResources.for_limits(object_store_memory=buffer_bytes)
        context.execution_options.resource_limits = limits
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    numbers = ray.data.read_datasource(Numbers(num_blocks), num_cpus=task_cpus, override_num_blocks=num_blocks)
    blocks = numbers.map_batches(Packed(make), batch_size=None, num_cpus=task_cpus)
    return list(blocks.streaming_split(world, equal=False))


class Packed:
    """A function that is unpacked where it is first called.

    Ray Data's coordinator handles the function and never calls it: so it need not import what the function needs, such
    as torch, which takes seconds that the first batch would wait for.
    """

    def __init__(self, make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
        self.content = ray.cloudpickle.dumps(make)

    def __call__(self, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the function makes of a block."""
        return _unpacked(self.content)(block)


@lru_cache(maxsize=2)
def _unpacked(content: bytes) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = ray.cloudpickle.loads(content)
    return make


class Numbers(Datasource):
    """The numbers from 0 to `num` - 1, each in a block of its own.

    Unlike `ray.data.range` it can be read with the CPUs of the tasks behind it, so that Ray joins both in one operator;
    else it sets half of the CPUs aside for the reading of numbers.
    """

    def __init__(self, num: int) -> None:
        self.num = num

    def estimate_inmemory_data_size(self) -> int:
        """8 bytes each."""
        return 8 * self.num

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """A task for each number."""
        metadata = BlockMetadata(num_rows=1, size_bytes=8, input_files=None, exec_stats=None)
        schema = pa.schema([(COLUMN, pa.int64())])
        return [ReadTask(partial(_block_of, number), metadata, schema=schema) for number in range(self.num)]


class Rest:
    """Has Ray Data's scheduler rest between steps that it did not wait in.

    Ray 2.60 waits for tasks that run. When none does, because their output still waits for a consumer, its loop keeps a
    whole CPU busy, which the training that is waited for could use.
    """

    def __init__(self) -> None:
        self.last_step = 0.0

    def before_execution_starts(self, executor: Any) -> None:
        """Nothing to do."""

    def on_execution_step(self, executor: Any) -> None:
        """Called by Ray Data after each step of its loop."""
        if time.perf_counter() - self.last_step < REST_S:
            time.sleep(REST_S)
        self.last_step = time.perf_counter()

    def after_execution_succeeds(self, executor: Any) -> None:
        """Nothing to do."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Nothing to do."""


def _block_of(number: int) -> Iterable[pa.Table]:
    return [pa.table({COLUMN: [number]})]
