"""The data tasks of a node, and the one process of long life that starts them for all ranks there.

A rank asks the executor of its node for blocks, gets references at once, and waits for one when a step needs it. What
tasks make belongs to the executor, as do the processes in which they run: both outlive a rank, and a new rank finds
them warm. The executor imports neither torch nor what decodes: it never looks into what it hands out.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import OwnerDiedError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysl.data.decode.corrupt import Known
from raysl.data.stream.blocks import Block
from raysl.process.code_errors import explaining_code

if TYPE_CHECKING:
    from raysl.data.stream.loader import Loader
    from raysl.data.stream.rows import BlockRows

KnownBlock = tuple[Block, Known]
"""What a data task makes, and the corrupt images of it that need not be read again."""
STORE_SHARE = 0.25
"""Of a node's object store, for blocks that wait for their ranks."""
RETRIES = 3
"""How often a data task is repeated after its process has died."""
PATIENCE_S = 60.0
"""How long an executor may be away until its ranks give up."""
STARVED_S = 30.0
"""How long a rank waits for a block until it asks whether any CPU is free for data tasks."""


def start_executor(task_cpus: float, node: str | None = None) -> Any:
    """Start the executor of a node, which ends with its last handle or with the process that has called this.

    Args:
        task_cpus: CPUs of each data task.
        node: identifier of the node. Default: the one of this process.
    """
    node = node or ray.get_runtime_context().get_node_id()
    actor = ray.remote(
        num_cpus=0, max_restarts=-1, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
    )
    return actor(Executor).remote(task_cpus)


class Executor:
    """Starts data tasks; an actor.

    Tasks run on the node of the executor as long as it has free CPUs, and otherwise where there are some: a node of
    GPUs with few cores may be fed by nodes without a GPU.

    Args:
        task_cpus: CPUs of each data task.
    """

    def __init__(self, task_cpus: float) -> None:
        self.task_cpus = task_cpus
        node = ray.get_runtime_context().get_node_id()
        near = NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
        self.task = ray.remote(num_cpus=task_cpus, max_retries=RETRIES, scheduling_strategy=near)(data_task)

    def prepare(self, loader: list[Any]) -> None:
        """Start a process for data tasks, for example while ranks start."""
        self.task.remote(loader, None)

    def make(self, loader: list[Any], blocks: list[KnownBlock]) -> list[Any]:
        """Start a task for each block, and return references to their rows.

        Args:
            loader: reference to the loader, in a list, so that Ray does not resolve it for each task.
        """
        return [self.task.remote(loader, block) for block in blocks]

    def make_without_cpu(self, loader: list[Any], block: KnownBlock) -> list[Any]:
        """Start a task for a block that asks for no CPU, if none is free, and return a reference to its rows.

        Other work, or the workers of a run that has lost a node, may hold all CPUs for as long as they wait for it.
        """
        if ray.available_resources().get("CPU", 0.0) >= self.task_cpus:
            return []
        return [self.task.options(num_cpus=0).remote(loader, block)]


@explaining_code()
def data_task(loader: list[Any], block: KnownBlock | None) -> "BlockRows | None":
    """Make the rows of a block; None only prepares the process, so that its first block comes sooner."""
    import torch

    from raysl.data.stream.rows import load_block
    from raysl.process.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    found = _find_loader(loader[0])
    if block is None:
        found.prepare()
        return None
    return load_block(found, *block)


def _find_loader(reference: Any) -> "Loader":
    """Return a loader, which a process reads from the object store once."""
    key = reference.hex()
    if key not in _loaders:
        while len(_loaders) > 1:  # concurrent trials share processes
            _loaders.pop(next(iter(_loaders)))
        _loaders[key] = ray.get(reference)
    return _loaders[key]


_loaders: "dict[str, Loader]" = {}


def use_executor(handle: Any) -> None:
    """Keep the executor that this process, a rank, asks for blocks."""
    global _executor
    _executor = handle


def own_executor() -> Any:
    """Return the executor that `use_executor` has kept."""
    assert _executor is not None, "no executor was handed to this process"
    return _executor


_executor: Any = None


@dataclass(frozen=True)
class Ahead:
    """How much is made before a rank needs it: always the next block, and then as long as it stays below both limits.

    Args:
        num_blocks: most blocks, finished or in the making.
        num_bytes: most bytes of them.
    """

    num_blocks: int
    num_bytes: int

    @classmethod
    def of(cls, task_cpus: float, world: int, local_world: int, prefetch: int, buffer_bytes: int | None) -> "Ahead":
        """Return the share of a rank in the CPUs of the cluster and in the object store of its node.

        Args:
            task_cpus: CPUs of each data task.
            world, local_world: ranks of the run, and of those the ones on the node.
            prefetch: finished blocks beside those in the making.
            buffer_bytes: of the object store that blocks may fill. Default: `STORE_SHARE` of it.
        """
        tasks = math.ceil(ray.cluster_resources().get("CPU", 1.0) / task_cpus / world)
        return cls(tasks + prefetch, (buffer_bytes or _buffer_bytes()) // local_world)


def _buffer_bytes() -> int:
    here = ray.get_runtime_context().get_node_id()
    sizes = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    return int(STORE_SHARE * sum(sizes))


class Feed:
    """The blocks of a rank in order, made ahead by an executor.

    Args:
        blocks: in the order in which they are needed.
        row_bytes: bytes of a row.
        ahead: how much is made before it is needed.
        known_in: returns the corrupt images of a block that are known already, see `cut_images`.
        on_starved: called each time that a block is made without a CPU, because none is free.
    """

    def __init__(
        self,
        executor: Any,
        loader: Any,
        blocks: Iterator[Block],
        row_bytes: int,
        ahead: Ahead,
        known_in: Callable[[Block], Known] = lambda _: {},
        on_starved: Callable[[], object] = lambda: None,
    ) -> None:
        self.known_in = known_in
        self.make = partial(executor.make.remote, [loader])
        self.make_without_cpu = partial(executor.make_without_cpu.remote, [loader])
        self.on_starved = on_starved
        self.blocks = blocks
        self.row_bytes = row_bytes
        self.ahead = ahead
        self.asked: deque[_Asked] = deque()
        self.num_bytes = 0
        self.ask()

    def __iter__(self) -> "Iterator[tuple[Block, Callable[[], BlockRows]]]":
        """Yield each block with what waits for its rows."""
        while self.asked:
            first = self.asked.popleft()
            self.num_bytes -= first.block.num_rows * self.row_bytes
            self.ask()
            yield first.block, first.wait

    def ask(self) -> None:
        """Ask for blocks up to the limits."""
        new: list[Block] = []
        while not (self.asked or new) or self._has_room(len(self.asked) + len(new)):
            block = next(self.blocks, None)
            if block is None:
                break
            self.num_bytes += block.num_rows * self.row_bytes
            new.append(block)
        if new:
            reply = self.make([self.with_known(block) for block in new])
            self.asked.extend(_Asked(self, block, reply, place) for place, block in enumerate(new))

    def with_known(self, block: Block) -> KnownBlock:
        """Return a block with its corrupt images that are known."""
        return block, self.known_in(block)

    def _has_room(self, num_blocks: int) -> bool:
        return num_blocks < self.ahead.num_blocks and self.num_bytes < self.ahead.num_bytes


class _Asked:
    def __init__(self, feed: Feed, block: Block, reply: Any, place: int) -> None:
        self.feed = feed
        self.block = block
        self.reply, self.place = reply, place

    def wait(self) -> "BlockRows":
        """Return the rows; ask again if the executor has died, which Ray starts anew."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                rows: BlockRows = ray.get(self._reference())
            except (RayActorError, OwnerDiedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                self.reply, self.place = self.feed.make([self.feed.with_known(self.block)]), 0
            else:
                return rows

    def _reference(self) -> Any:
        """Return a reference to the rows once they are there, or are made without a CPU."""
        reference = ray.get(self.reply)[self.place]
        while not ray.wait([reference], timeout=STARVED_S)[0]:
            if hurried := ray.get(self.feed.make_without_cpu(self.feed.with_known(self.block))):
                self.feed.on_starved()
                return hurried[0]
        return reference
