"""The training images of a run as Ray Train hands them out: a dataset a rank, which the rank itself executes.

Ray Data's scheduler takes 8 ms of CPU a block, and a rank needs 2 to 5 blocks a second. In the worker it needs no
process of its own and ends with the worker.
"""

from dataclasses import dataclass
from typing import Any

import ray
from ray.train import DataConfig, UserCallback
from typing_extensions import override

from raysl.cluster.board import Board
from raysl.runs.failures import FailureNotes

TRAIN = "train"
STORE_SHARE = 0.25
"""Of a node's object store, for blocks that wait for its ranks."""
SUBCLUSTER = "ray-subcluster"
"""Label of a group of nodes whose CPUs Ray Data shares among the streams of these nodes alone."""


@dataclass(eq=False, repr=False)
class RankStreams(DataConfig):
    """Gives each rank a dataset of its own blocks.

    Args:
        loader: reference to the loader of the run, in a list, so that Ray does not resolve it.
        name: name of the run, as Ray takes it.
        steps: work of a data task, see `raysl.data.stream.dataset.stream_dataset`.
        buffer_bytes: bytes of a node's object store that blocks may fill. Default: `STORE_SHARE` of it.
        variables: environment of the workers, which data tasks get too.
    """

    loader: list[Any]
    name: str
    steps: str
    task_cpus: float
    buffer_bytes: int | None
    variables: dict[str, str]

    def __post_init__(self) -> None:
        super().__init__(datasets_to_split=[])

    def prepare(self) -> None:
        """Start a process for data tasks, which Ray Data's tasks then find idle."""
        from raysl.data.stream.dataset import prepare_process

        # A trial's own resources, in which Ray would look for room, are those of its driver.
        options: dict[str, Any] = {"num_cpus": self.task_cpus, "scheduling_strategy": "DEFAULT"}
        if self.variables:
            options["runtime_env"] = {"env_vars": self.variables}
        ray.remote(**options)(prepare_process).remote(self.loader)

    @override
    def configure(
        self,
        datasets: dict[str, Any],
        world_size: int,
        worker_handles: list[Any] | None,
        worker_node_ids: list[str] | None,
        **_: Any,
    ) -> list[dict[str, Any]]:
        """Return the shard of each rank. Ray Train calls it for every group of workers, in a process of its own."""
        from raysl.data.stream.dataset import stream_dataset, stream_key

        assert worker_node_ids is not None
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        shards = []
        for rank, node_id in enumerate(worker_node_ids):
            node = nodes.get(node_id, {"Resources": {}, "Labels": {}})
            # all ranks of a node share its object store in equal parts
            store = node["Resources"].get("object_store_memory", 0)
            num_bytes = self.buffer_bytes or int(STORE_SHARE * store) or None
            dataset = stream_dataset(
                stream_key(self.loader[0], rank),
                self.loader[0],
                f"{self.name}, rank {rank}",
                self.steps,
                self.task_cpus,
                None if num_bytes is None else num_bytes // worker_node_ids.count(node_id),
                {SUBCLUSTER: node["Labels"][SUBCLUSTER]} if SUBCLUSTER in node["Labels"] else None,
            )
            shards.append({TRAIN: dataset.iterator()})
        return shards


class PrepareAgain(UserCallback):
    """Starts a process for data tasks when workers were lost: those of their tasks may have ended with them."""

    def __init__(self, streams: RankStreams) -> None:
        self.streams = streams

    @override
    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        self.streams.prepare()


class NewGroup:
    """Stands for the dataset of a run; Ray Train calls it in its controller when a group of workers begins to start."""

    def __init__(self, board: str) -> None:
        self.board = board

    def __call__(self) -> Any:
        """Return what Ray Train has to hand to `RankStreams.configure`, which makes the datasets itself."""
        import ray.data

        FailureNotes(Board(self.board)).begin_group()
        return ray.data.range(1)
