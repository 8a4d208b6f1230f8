"""Work as tasks: on the head node, errors as they were raised there, and objects that a process fetches once."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysl.errors import ConfigError, RunFailed


@contextmanager
def raising_as_there() -> Iterator[None]:
    """Raise an error of raysl in a task as it was raised there."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ConfigError | RunFailed):
            # Ray adds lines about its retries.
            raise type(error.cause)(str(error.cause).splitlines()[0]) from error
        raise


_FETCHED: dict[str, Any] = {}


def fetch_once(reference: Any) -> Any:
    """Return an object of Ray's store; a process fetches it once, and keeps the last one."""
    key = reference.hex()
    if key not in _FETCHED:
        _FETCHED.clear()
        _FETCHED[key] = ray.get(reference)
    return _FETCHED[key]


log = logging.getLogger("raysl")

T = TypeVar("T")
ANSWER_S = 60.0
"""Seconds for the head node to answer; it starts a process for that."""
HEAD = "node:__internal_head__"
"""Resource that Ray gives the head node, 1.0 of it."""


def on_head(function: Callable[..., T], *arguments: Any) -> T | None:
    """Return what a function returns on the head node; None if there is no answer.

    The function is called here if this process is there. Else it runs as a task, which takes no CPU.
    """
    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"]), None)
    if head is None:
        return None
    if head == ray.get_runtime_context().get_node_id():
        return function(*arguments)
    there = NodeAffinitySchedulingStrategy(head, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=there)
    try:
        answer: T = ray.get(task.remote(*arguments), timeout=ANSWER_S)
        return answer
    except RayError as error:  # the head has no raysl, or is too busy
        log.debug("the head node has not answered: %s", error)
        return None


def keep_actors_on_head() -> None:
    """Start the actors of Ray Data that outlive a job on the head node, unless they run already.

    Ray starts each on the node that needs it first, and Ray's autoscaler never gives back a node with an actor.
    """
    running = ray.util.list_named_actors(all_namespaces=True)
    if all(actor["name"] != _STATISTICS for actor in running):
        on_head(_read_row)


_STATISTICS = "datasets_stats_actor"  # one of them


def _read_row() -> None:
    """Execute a dataset that needs no task, for which Ray Data starts its actors on this node."""
    from raysl.cluster.numbered_parts import blocks, numbered  # Ray Data, which not all drivers need

    list(blocks(numbered([0])))
