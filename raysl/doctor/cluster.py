"""Asking the nodes of a Ray cluster; no question can hang, and one that is not answered in time is a finding."""

import math
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.cloudpickle
from ray.exceptions import RayError, RayTaskError, RpcError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysl.cluster.autoscaler import read_activity, read_autoscaler
from raysl.cluster.board import runs_at_work
from raysl.cluster.failures import reason
from raysl.cluster.resources import amount
from raysl.cluster.tasks import HEAD, keep_actors_on_head
from raysl.cluster.waiting_for_nodes import describe_used
from raysl.doctor import node as node_module
from raysl.doctor.measures import JOIN_S, image_speed, sum_speed
from raysl.doctor.node import NodeActor
from raysl.doctor.storage import STORAGE_S, storage_speed
from raysl.process import environment
from raysl.process.screen import counted
from raysl.process.waiting import enter
from raysl.storage.reads import short_reason

ANSWER_S = 20.0
"""Seconds in which a node must answer a first question."""
SUM_S, IMAGES_S = 45.0, 45.0
MOST_PATIENCE = 4.0
"""By which these grow at most on nodes with more processes than cores."""
CLOCK_ASKS = 8
GIB = 1 << 30


@dataclass(frozen=True)
class Node:
    """A node that is up, as the head knows it.

    Args:
        object_store: GiB.
    """

    id: str
    address: str
    is_head: bool
    cpus: float
    gpus: float
    object_store: float

    @property
    def name(self) -> str:
        """Address, and the beginning of Ray's id, since nodes may share an address."""
        return f"{self.address} ({'head, ' if self.is_head else ''}{self.id[:6]})"

    @property
    def is_worker(self) -> bool:
        """Whether it can train or load data."""
        return self.cpus > 0 or self.gpus > 0


@dataclass(frozen=True)
class Answer:
    """What a task returned.

    Args:
        value: the result; None without one.
        error: why there is none, in a line; None with a result.
        is_late: whether the time was over.
    """

    value: Any = None
    error: str | None = None
    is_late: bool = False


def live_nodes() -> list[Node]:
    """Return the nodes that are up, the head first."""
    alive = [
        Node(
            id=entry["NodeID"],
            address=entry["NodeManagerAddress"],
            is_head=HEAD in entry["Resources"],
            cpus=entry["Resources"].get("CPU", 0.0),
            gpus=entry["Resources"].get("GPU", 0.0),
            object_store=round(entry["Resources"].get("object_store_memory", 0.0) / GIB, 2),
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]
    return sorted(alive, key=lambda node: (not node.is_head, node.address, node.id))


def ask_growth(nodes: Sequence[Node]) -> dict[str, Any] | None:
    """Return the `cpus` and `gpus` that the autoscaler may add up to, and the `origin` of that; None without one.

    The `problem` is why it could not add a node lately; empty if there is none.
    """
    enter("reading what the autoscaler may add")
    growth = read_autoscaler()
    if growth is None:
        return None
    try:
        problem = read_activity().problem
    except (RayError, RpcError) as error:
        problem = short_reason(error)
    cpus = max(growth.cpus, sum(node.cpus for node in nodes))
    gpus = max(growth.gpus, sum(node.gpus for node in nodes))
    return {"cpus": cpus, "gpus": gpus, "origin": growth.origin, "problem": problem}


def ask_facts(nodes: Sequence[Node], patience: float = 1.0) -> dict[str, Answer]:
    """Return `node_facts` of nodes, by id, with `clock_s`: how far a node's clock is ahead of ours, in seconds.

    That is within `clock_bound_s` of the truth: half of the time of the fastest of several questions to it.
    """
    enter(f"asking {counted(len(nodes), 'node')}")
    # sent as code, so that a node without raysl, or with another version of it, can answer too
    for module in (node_module, environment):
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        actors = {node.id: ray.remote(num_cpus=0, scheduling_strategy=_at(node))(NodeActor).remote() for node in nodes}
        tasks = {node: actor.facts.remote() for node, actor in actors.items()}
        answers = _collect(tasks, ANSWER_S * patience, is_cancelled=False)
        answers = {node: _with_clock(answer, actors[node]) for node, answer in answers.items()}
        for actor in actors.values():
            ray.kill(actor)
        return answers
    finally:
        for module in (node_module, environment):
            ray.cloudpickle.unregister_pickle_by_value(module)


def _with_clock(answer: Answer, actor: Any) -> Answer:
    """Add the clock of a node to its facts: the middle of a question is when the node looked at its clock."""
    if answer.error is not None:
        return answer
    best: tuple[float, float] | None = None  # bound, offset
    for _ in range(CLOCK_ASKS):
        asked_at, start = time.time(), time.perf_counter()
        now = _answer(actor.now.remote())
        took = time.perf_counter() - start
        if now.error is not None:
            return now
        # the clock was read at some moment of the question, so the shortest question knows it best
        if best is None or took / 2 < best[0]:
            best = took / 2, now.value - (asked_at + took / 2)
    assert best is not None
    bound, offset = best
    clock = {"clock_s": round(offset, 3), "clock_bound_s": math.ceil(bound * 1000) / 1000}
    return replace(answer, value=answer.value | clock)


def patience(facts: Sequence[Mapping[str, Any]]) -> float:
    """Return the factor by which to wait longer: the load a core of the busiest node, from 1 to `MOST_PATIENCE`.

    >>> patience([{"load": 1.0, "cores": 8}, {"load": 6.0, "cores": 2}])
    3.0
    """
    loads = [float(each["load"] / each["cores"]) for each in facts]
    return min(MOST_PATIENCE, max([1.0, *loads]))


def ask_storage(nodes: Sequence[Node], uri: str, patience: float = 1.0) -> dict[str, Answer]:
    """Return `storage_speed` of nodes, by id; all read and write the folder of a `StorageProbe` at a time."""
    enter(f"reading and writing the storage on {counted(len(nodes), 'node')}")
    tasks = {node.id: _on(node, storage_speed).remote(uri, node.id) for node in nodes}
    return _collect(tasks, STORAGE_S * patience)


def ask_sums(nodes: Sequence[Node], patience: float = 1.0) -> Answer:
    """Return `sum_speed` of two or more nodes: on a GPU of each where all have a free one, else on their CPUs."""
    enter(f"summing tensors over {len(nodes)} nodes")
    free = ray.available_resources()
    is_cuda = all(node.gpus >= 1 for node in nodes) and free.get("GPU", 0.0) >= sum(node.gpus for node in nodes)
    (port,) = _collect({"port": _on(nodes[0], _free_port).remote()}, ANSWER_S * patience).values()
    if port.error is not None:
        return port
    address = f"{nodes[0].address}:{port.value}"
    gpus, join_s = 1.0 if is_cuda else 0.0, JOIN_S * patience
    tasks = {
        node.id: _on(node, sum_speed, gpus).remote(address, rank, len(nodes), is_cuda, join_s)
        for rank, node in enumerate(nodes)
    }
    answers = _collect(tasks, SUM_S * patience)
    late = [answer for answer in answers.values() if answer.is_late]
    failed = [answer for answer in answers.values() if answer.error is not None]
    return next(iter([*late, *failed, *answers.values()]))


def ask_images(cpus: float, patience: float = 1.0, used: str = "") -> Answer:
    """Return `image_speed` with as many data tasks; `used` says what CPUs other work uses."""
    enter(f"decoding images on {amount(cpus, 'CPU')} of the cluster{'; ' if used else ''}{used}")
    keep_actors_on_head()
    task = ray.remote(num_cpus=0, max_retries=0)(image_speed).remote(cpus)
    (answer,) = _collect({"": task}, IMAGES_S * patience).values()
    return answer


def free_cpus(workers: Sequence[Node]) -> float:
    """Return the CPUs of these nodes that nothing holds; 0 if less than one."""
    free = min(ray.available_resources().get("CPU", 0.0), sum(node.cpus for node in workers))
    return float(free) if free >= 1 else 0.0


def used_cpus(workers: Sequence[Node]) -> str:
    """Return how many CPUs of these nodes other work uses, and the runs at work, in words; empty if it uses none."""
    have = sum(node.cpus for node in workers)
    used = describe_used(have - min(ray.available_resources().get("CPU", 0.0), have), runs_at_work())
    return f"of {amount(have, 'CPU')}, {used}" if used else ""


def _on(node: Node, function: Any, gpus: float = 0.0) -> Any:
    """Return a function as a task of one node, which needs none of its CPUs."""
    return ray.remote(num_cpus=0, num_gpus=gpus, max_retries=0, scheduling_strategy=_at(node))(function)


def _at(node: Node) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _collect(tasks: Mapping[str, Any], timeout_s: float, is_cancelled: bool = True) -> dict[str, Answer]:
    """Wait for tasks, and cancel those that do not answer in time, unless they are of actors that end with them."""
    names = {task: name for name, task in tasks.items()}
    answers: dict[str, Answer] = {}
    pending, deadline = list(names), time.monotonic() + timeout_s
    while pending and (rest := deadline - time.monotonic()) > 0:
        # one at a time, so that what has arrived counts even where others are late
        ready, pending = ray.wait(pending, num_returns=1, timeout=rest)
        answers |= {names[task]: _answer(task) for task in ready}
    for task in pending:
        if is_cancelled:
            ray.cancel(task, force=True)
        answers[names[task]] = Answer(error=f"no answer within {timeout_s:.0f} s", is_late=True)
    return answers


def _answer(task: Any) -> Answer:
    try:
        return Answer(ray.get(task, timeout=ANSWER_S))
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        return Answer(error=short_reason(cause))
    except RayError as error:
        return Answer(error=reason(error))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
