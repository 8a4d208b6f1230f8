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


def deal_blocks(
    make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    num_blocks: int,
    world: int,
    task_cpus: float,
    buffer_bytes: int | None,
) -> list[Any]:
    """Prepare an execution; its tasks start when blocks are requested.

    Args:
        make: takes the column `number`, one row, and returns the columns of a block; runs in a task.
        num_blocks: total number of blocks.
        world: number of ranks; block i goes to rank i mod world, if all blocks have the same number of rows.
        task_cpus: CPUs of each task.
        buffer_bytes: of Ray's object store that blocks may fill before tasks wait; None: Ray decides.

    Returns:
        An iterator over blocks for each rank.
    """
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = None  # Ray must not split blocks: they are dealt out in turn
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True  # Ray's own has lost what raysl says about the images
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
    """A pickled function that is unpickled at its first call.

    Ray Data's coordinator handles the function without calling it. So it does not import what the function needs, such
    as torch, which would delay the first batch by seconds.
    """

    def __init__(self, make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
        self.content = ray.cloudpickle.dumps(make)

    def __call__(self, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Call the function on a block."""
        return _unpack(self.content)(block)


@lru_cache(maxsize=2)
def _unpack(content: bytes) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    make: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = ray.cloudpickle.loads(content)
    return make


class Numbers(Datasource):
    """The numbers from 0 to `num` - 1, each in a separate block.

    Unlike `ray.data.range`, its read tasks can have the CPUs of the tasks after it, so that Ray fuses both into one
    operator; otherwise Ray would reserve half of the CPUs for reading numbers.
    """

    def __init__(self, num: int) -> None:
        self.num = num

    def estimate_inmemory_data_size(self) -> int:
        """Return 8 bytes for each number."""
        return 8 * self.num

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Return a task for each number."""
        metadata = BlockMetadata(num_rows=1, size_bytes=8, input_files=None, exec_stats=None)
        schema = pa.schema([(COLUMN, pa.int64())])
        return [ReadTask(partial(_make_block, number), metadata, schema=schema) for number in range(self.num)]


class Rest:
    """Lets Ray Data's scheduler sleep between steps in which it did not wait.

    Ray 2.60 waits only for running tasks. When none is running, because their output waits for the consumer, its loop
    keeps a whole CPU busy, which training could use.
    """

    def __init__(self) -> None:
        self.last_step = 0.0

    def before_execution_starts(self, executor: Any) -> None:
        """Nothing to do."""

    def on_execution_step(self, executor: Any) -> None:
        """Sleep if the last step was short; Ray Data calls it after each step of its loop."""
        if time.perf_counter() - self.last_step < REST_S:
            time.sleep(REST_S)
        self.last_step = time.perf_counter()

    def after_execution_succeeds(self, executor: Any) -> None:
        """Nothing to do."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Nothing to do."""


def _make_block(number: int) -> Iterable[pa.Table]:
    return [pa.table({COLUMN: [number]})]
