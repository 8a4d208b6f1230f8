"""The blocks of a rank as a dataset of Ray Data: a read task makes each block, in the order in which they are needed.

A stream may be as long as a run, and Ray Data lists the read tasks of an execution at its start. So the dataset is
executed part by part: each execution makes the blocks that its rank has offered last in the same process.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.data
from ray.data import DataContext, Dataset, Datasource, ExecutionOptions, ExecutionResources, ReadTask
from ray.data.block import Block as RayBlock
from ray.data.block import BlockAccessor, BlockMetadata
from typing_extensions import override

from raysl.cluster.numbered_parts import quieten
from raysl.data.decode.corrupt import Replaced
from raysl.data.stream.blocks import NumberedBlock, PlainRows
from raysl.process.code_errors import explaining_code

if TYPE_CHECKING:
    from raysl.data.stream.loader import Loader
    from raysl.data.stream.rows import BlockRows

NUMBER, NOTE = "number", "note"
"""Columns of a block beside those of its rows: its number, and what is known of it, JSON in its first row."""

SHORT_S = 0.005
"""Seconds of a step of Ray Data's scheduler in which it cannot have waited."""
LEAST_REST_S, MOST_REST_S = 0.001, 0.05
"""Seconds for which it then rests: twice as long after each further short step."""

_offered: dict[str, Sequence[NumberedBlock]] = {}


def offer(stream: str, blocks: Sequence[NumberedBlock]) -> None:
    """Let the next execution of a stream's dataset in this process make these blocks."""
    _offered[stream] = blocks


def stream_key(loader: Any, rank: int) -> str:
    """Return the key of a rank's stream of training blocks; `loader` refers to the run's loader."""
    return f"{loader.hex()} {rank}"


def stream_dataset(
    stream: str,
    loader: Any,
    name: str,
    steps: str,
    task_cpus: float,
    buffer_bytes: int | None,
    labels: dict[str, str] | None = None,
) -> Dataset:
    """Return the dataset of a stream.

    Args:
        stream: key by which the rank offers blocks, see `offer`.
        loader: reference to the `Loader` in Ray's object store.
        steps: work of a task, such as `DecodeCrop`, as the name of the operator on the dashboard.
        buffer_bytes: bytes of Ray's object store that blocks may fill before tasks wait; None: Ray decides.
        labels: labels of the nodes on which tasks may run; None: on all.
    """
    context = DataContext.get_current().copy()
    quieten(context)
    context.target_max_block_size = None  # a block is never split
    if Rest not in context.custom_execution_callback_classes:
        context.custom_execution_callback_classes.append(Rest)
    limits = ExecutionResources.for_limits(object_store_memory=buffer_bytes)
    context.execution_options = ExecutionOptions(preserve_order=True, resource_limits=limits, label_selector=labels)
    with DataContext.current(context):
        source = BlockSource(stream, [loader], steps)
        dataset = ray.data.read_datasource(source, num_cpus=task_cpus, override_num_blocks=1)
    dataset.set_name(name)
    return dataset


class BlockSource(Datasource):
    """The offered blocks of a stream.

    Args:
        loader: reference to the loader, in a list, so that Ray does not resolve it for each task.
    """

    def __init__(self, stream: str, loader: list[Any], steps: str) -> None:
        self.stream = stream
        self.loader = loader
        self.steps = steps

    @override
    def get_name(self) -> str:
        return self.steps

    @override
    def estimate_inmemory_data_size(self) -> int | None:
        return None

    @override
    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        return [
            ReadTask(
                partial(make_block, self.loader, each),
                BlockMetadata(num_rows=each.block.num_rows, size_bytes=None, input_files=None, exec_stats=None),
            )
            for each in _offered.get(self.stream, ())
        ]


@explaining_code()
def make_block(loader: list[Any], numbered: NumberedBlock) -> list[RayBlock]:
    """Make the rows of a block: what a read task does."""
    # the clock starts once the process is set up, which happens only once and is no cost of this block
    process, start = _prepared(loader[0]), time.perf_counter()
    from raysl.data.stream.rows import load_block

    block = numbered.block
    is_held_out = isinstance(block, PlainRows) and block.is_held_out
    # corrupt images are known by their rows in the training split: rows of held-out images mean others
    rows = load_block(process.loader, block, {} if is_held_out else {**process.known, **numbered.known})
    if not is_held_out:
        process.known |= {image.row: image for image in rows.corrupt if isinstance(image, Replaced)}
    return [to_ray(rows, numbered.number, time.perf_counter() - start)]


def prepare_process(loader: list[Any]) -> None:
    """Import and load in this process what its first block needs."""
    _prepared(loader[0]).loader.prepare()


def _prepared(reference: Any) -> "_ProcessLoader":
    """Set up this process for data tasks, and return the loader, which it reads from the object store once."""
    import torch

    from raysl.process.memory import keep_freed_memory

    # many tasks share the CPUs of a node, so more threads each would only compete
    torch.set_num_threads(1)
    keep_freed_memory()
    key = reference.hex()
    if key not in _loaders:
        while len(_loaders) > 1:  # concurrent trials share processes
            _loaders.pop(next(iter(_loaders)))
        _loaders[key] = _ProcessLoader(ray.get(reference))
    return _loaders[key]


def to_ray(rows: "BlockRows", number: int, task_s: float) -> RayBlock:
    """Return the rows of block `number`, made in `task_s` seconds, as a block of Ray Data."""
    num_rows = len(rows.columns["key"])
    notes = np.full(num_rows, "", dtype=object)
    if num_rows:
        corrupt = [[str(image), image.row, image.other] for image in rows.corrupt if isinstance(image, Replaced)]
        notes[0] = json.dumps({"corrupt": corrupt, "read_s": rows.read_s, "task_s": task_s})
    return BlockAccessor.batch_to_block(rows.columns | {NUMBER: np.full(num_rows, number), NOTE: notes})


def from_ray(block: dict[str, np.ndarray]) -> "tuple[int, BlockRows, float]":
    """Return what `to_ray` took."""
    from raysl.data.stream.rows import BlockRows

    columns = dict(block)
    number, notes = columns.pop(NUMBER), columns.pop(NOTE)
    note = json.loads(notes[0])
    corrupt = tuple(Replaced(text, row, other) for text, row, other in note["corrupt"])
    return int(number[0]), BlockRows(columns, corrupt, note["read_s"]), note["task_s"]


@dataclass
class _ProcessLoader:
    """A loader in a process of data tasks, with the corrupt training images that its tasks have met, by their rows."""

    loader: "Loader"
    known: dict[int, Replaced] = field(default_factory=dict)


_loaders: dict[str, _ProcessLoader] = {}


class Rest:
    """Lets Ray Data's scheduler sleep between steps in which it did not wait.

    Ray 2.60 waits only for running tasks. When none is running, because their output waits for the consumer, its loop
    keeps a whole CPU busy, which training could use.
    """

    def __init__(self) -> None:
        self.last_step = 0.0
        self.rest_s = LEAST_REST_S

    def before_execution_starts(self, executor: Any) -> None:
        """Nothing to do."""

    def on_execution_step(self, executor: Any) -> None:
        """Sleep if the last step was short; Ray Data calls it after each step of its loop."""
        if time.perf_counter() - self.last_step < SHORT_S:
            time.sleep(self.rest_s)
            self.rest_s = min(MOST_REST_S, 2 * self.rest_s)
        else:
            self.rest_s = LEAST_REST_S
        self.last_step = time.perf_counter()

    def after_execution_succeeds(self, executor: Any) -> None:
        """Nothing to do."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Nothing to do."""
