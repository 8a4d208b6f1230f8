"""An executor of data tasks on each node of a run, kept by Ray Train's controller while workers come and go.

The controller loads this module, so it imports neither torch nor what trains.
"""

from typing import Any

import ray
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from typing_extensions import override

from raysl.data.stream.execution import start_executor, use_executor


class Executors(WorkerGroupCallback):
    """Starts an executor on each node that has workers, and hands it to them.

    Executors end with the controller. One whose workers were lost stays for the next ones.

    Args:
        loader: reference to the loader of the run, in a list, so that Ray does not resolve it.
    """

    def __init__(self, loader: list[Any], task_cpus: float) -> None:
        self.loader = loader
        self.task_cpus = task_cpus
        self.executors: dict[str, Any] = {}

    @override
    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Start the executor while the workers start, where it is clear on which node they will be."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        num, needed = worker_group_context.num_workers, worker_group_context.resources_per_worker
        if len(nodes) == 1 and all(nodes[0]["Resources"].get(name, 0) >= num * each for name, each in needed.items()):
            self._executor(nodes[0]["NodeID"])

    @override
    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        for worker in workers:
            worker.execute_async(use_executor, self._executor(worker.metadata.node_id))
        nodes = {worker.metadata.node_id for worker in workers}  # Ray's autoscaler gives back no other with an actor
        self.executors = {node: executor for node, executor in self.executors.items() if node in nodes}
        return {}

    def _executor(self, node: str) -> Any:
        """Return the executor of a node, which is started at the first call."""
        if node not in self.executors:
            self.executors[node] = start_executor(self.task_cpus, node)
            self.executors[node].prepare.remote(self.loader)
        return self.executors[node]
