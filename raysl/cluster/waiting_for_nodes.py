"""Waiting until a cluster has room for workers or tasks, and saying what is missing."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import ray
from ray.exceptions import RayError, RpcError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raysl.cluster.autoscaler import Activity, read_activity
from raysl.cluster.board import runs_at_work
from raysl.cluster.connection import is_private
from raysl.cluster.resources import amount
from raysl.cluster.settings import cluster_settings
from raysl.cluster.tasks import keep_actors_on_head
from raysl.errors import RunFailed
from raysl.process.screen import duration
from raysl.process.waiting import waiting

SILENT_S = 1.0
"""Seconds of waiting about which nothing is said."""
LOOK_S = 2.0
"""Seconds between two looks at the cluster."""
Amounts = Mapping[str, float]
_KINDS = ("GPU", "CPU")


def wait_for_nodes(bundles: Sequence[Amounts], user: str, need: str = "") -> None:
    """Wait until the cluster has room for all bundles at once, which makes its autoscaler add nodes; then free it.

    Says what is missing, and again each minute. Does nothing on a private cluster, which never grows, and in a task or
    an actor, whose own CPUs it may be that are missing.

    Args:
        bundles: resources, each on one node: `[{"CPU": 1.0, "GPU": 1.0}, {"CPU": 0.5}]`.
        need: the bundles in words; default: their sum.

    Raises:
        RunFailed: if there is no room within `cluster.wait_minutes`.
    """
    if is_private() or not bundles or ray.get_runtime_context().worker.mode != ray.SCRIPT_MODE:
        return
    keep_actors_on_head()
    group = placement_group([dict(bundle) for bundle in bundles])
    try:
        if not group.wait(SILENT_S):
            _wait(group, bundles, user, need)
    finally:
        with suppress(RayError):
            remove_placement_group(group)


def _wait(group: PlacementGroup, bundles: Sequence[Amounts], user: str, need: str) -> None:
    wanted = total(bundles)
    need = need or f"{' and '.join(amount(wanted[kind], kind) for kind in _KINDS if kind in wanted)} for {user}"
    limit, begun = cluster_settings().wait_minutes, time.monotonic()
    with waiting() as waits:
        while True:
            up, free = ray.cluster_resources(), ray.available_resources()
            missing = f"{need}: {describe_missing(wanted, up, free, _activity(), _runs())}"
            waits.enter(f"waiting for {missing}")
            if group.wait(LOOK_S):
                waits.enter(f"starting {user}")
                return
            if limit is not None and time.monotonic() - begun > 60 * limit:
                raise RunFailed(
                    f"no room for {user} after {duration(60 * limit)}, by cluster.wait_minutes={limit:g}: waited for "
                    f"{missing}; start the same command again, or ask for fewer"
                )


def _activity() -> Activity:
    try:
        return read_activity()
    except (RpcError, RayError):  # the next look may get an answer
        return Activity()


def _runs() -> list[str]:
    try:
        return runs_at_work()
    except RayError:
        return []


def total(bundles: Sequence[Amounts]) -> dict[str, float]:
    """Add up bundles.

    >>> total([{"CPU": 1.0, "GPU": 1.0}, {"CPU": 0.5}])
    {'CPU': 1.5, 'GPU': 1.0}
    """
    kinds = dict.fromkeys(kind for bundle in bundles for kind in bundle)
    return {kind: round(sum(bundle.get(kind, 0.0) for bundle in bundles), 4) for kind in kinds}


def describe_missing(need: Amounts, up: Amounts, free: Amounts, activity: Activity, runs: Sequence[str] = ()) -> str:
    """Return what a cluster lacks, in words.

    >>> describe_missing({"GPU": 8}, {"GPU": 2}, {"GPU": 2}, Activity(is_adding=True))
    'the cluster has 2 of 8 GPUs; the autoscaler is adding nodes'
    >>> describe_missing({"CPU": 1.45}, {"CPU": 2}, {"CPU": 1.06}, Activity(), ["b"])
    'the cluster has 2 CPUs, of which 0.94 is in use by other work (run b)'
    """
    kinds = [kind for kind in _KINDS if need.get(kind, 0) > 0]
    # the kind that is short, GPUs first; where none is, the free amounts lie on different nodes
    kind = next((kind for kind in kinds if free.get(kind, 0.0) < need[kind]), kinds[0])
    wanted, have = need[kind], up.get(kind, 0.0)
    if free.get(kind, 0.0) >= wanted:
        text = "the cluster has enough, but not together on its nodes"
    elif have < wanted:
        text = f"the cluster has {have:g} of {amount(wanted, kind)}"
    else:
        text = f"the cluster has {amount(have, kind)}"
    if used := describe_used(have - free.get(kind, 0.0), runs):
        text += f", of which {used}"
    doing = describe_activity(activity)
    return f"{text}{'; ' if doing else ''}{doing}"


def describe_used(amount: float, runs: Sequence[str]) -> str:
    """Return how much other work uses, in words; empty if it uses nothing.

    >>> describe_used(3.0, ["a of the Ray job raysubmit_1", "b"])
    '3 are in use by other work (runs a of the Ray job raysubmit_1, b)'
    """
    if (used := round(amount, 4)) <= 0:
        return ""
    names = f" ({'run' if len(runs) == 1 else 'runs'} {', '.join(runs)})" if runs else ""
    return f"{used:g} {'is' if used <= 1 else 'are'} in use by other work{names}"


def describe_activity(activity: Activity) -> str:
    """Return what an autoscaler does, in words; empty if it does nothing.

    >>> describe_activity(Activity(is_adding=True))
    'the autoscaler is adding nodes'
    """
    if activity.problem:
        return f"the autoscaler could not add a node: {activity.problem}"
    return "the autoscaler is adding nodes" if activity.is_adding else ""


def growth_now() -> str:
    """Return what the autoscaler of the connected cluster does now, in words; empty if it does nothing, or has none."""
    return "" if is_private() else describe_activity(_activity())
