"""The private parts of Ray that raysl uses, each to be faster or quieter or to say more.

Without a part, in another version of Ray or by RAYSL_PLAIN_RAY=1, a function does nothing or returns None or False.
"""

import os
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

LOOK_EVERY_S = 0.02  # seconds between looks for a node that starts, and for data tasks that have ended
AT_ONCE = 4  # processes that a private cluster of several CPUs has ready: a run needs so many beside its data tasks
_CLIENT, _NODE, _PRINT = "_raylet.GcsClient", "_private.services.get_node", "_private.worker.print_to_stdstream"
_DATA_WAIT = "data._internal.execution.streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S"
_VARIABLES, _CLEANER = "get_env_vars_to_propagate", "PlacementGroupCleanerCallback"
_REPLACED: dict[str, tuple[Any, Any]] = {}  # what stands in place of a part, and Ray's own
_PRESTART = "--num_prestart_python_workers="


def lacking() -> list[str]:
    """Return in words what this process goes without."""
    parts = {"fast start": _NODE, "quiet output": _PRINT, "check of tokens": _CLIENT, "quick data tasks": _DATA_WAIT}
    return [words for words, name in parts.items() if _part(name) is None]


def _part(name: str) -> Any:
    """Return a module of Ray or something in it; None where there is none, or none is wanted."""
    try:
        return None if os.environ.get("RAYSL_PLAIN_RAY") == "1" else pkgutil.resolve_name(f"ray.{name}")
    except (ImportError, AttributeError):
        return None


def _replace(name: str, change: Callable[[Any], Any]) -> Any:
    """Replace a part, if it is there, by what `change` makes of Ray's own; return what was there."""
    owner, _, last = name.rpartition(".")
    if (part := _part(name)) is not None:
        ours, former = _REPLACED.get(name, (None, None))
        _REPLACED[name] = change(former := former if part is ours else part), former
        setattr(_part(owner), last, _REPLACED[name][0])
    return part


@contextmanager
def _changed(changes: dict[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Have parts replaced while inside."""
    for name, change in changes.items():
        _replace(name, change)
    try:
        yield
    finally:
        for name in changes:
            _replace(name, lambda former: former)


@contextmanager
def starting_fast(is_needed: Callable[[], bool] = lambda: True, with_state: bool = False) -> Iterator[None]:
    """Have `ray.init` start no more than a private cluster needs, and look often for its node, while inside.

    It listens on the loopback address only, and on Linux gets no signals to the group of this process. Where it
    `is_needed` no more, `ray.init` raises `InterruptedError`. The server of the dashboard starts `with_state` alone.
    """
    few = f"{_PRESTART}{AT_ONCE if (os.cpu_count() or 1) > 1 else 0}"
    changes: dict[str, Callable[[Any], Any]] = {"ray_constants.ENABLE_RAY_CLUSTER": lambda _: False}
    changes["services.get_node"] = lambda get: partial(_wait_and_get, get, is_needed)
    if sys.platform == "linux":  # elsewhere Ray finds its processes by their group, to end them
        changes["services.ConsolePopen"] = lambda popen: partial(popen, start_new_session=True)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        changes["utils.set_sigterm_handler"] = lambda _: lambda handler: None
    if not with_state:
        changes["services.start_api_server"] = lambda _: lambda *_, **__: (None, None)
        changes["node.Node.start_monitor"] = lambda _: lambda self: None
        changes["services.start_ray_process"] = lambda start: (
            lambda words, *rest, **options: start(
                [few if word.startswith(_PRESTART) else word for word in words], *rest, **options
            )
        )
    with _changed({f"_private.{name}": change for name, change in changes.items()}):
        yield


def _wait_and_get(get: Callable[[str, str], Any], is_needed: Callable[[], bool], address: str, node: str) -> Any:
    """Call `get`, which waits one, two and five seconds for a node, once that has registered or 30 s are over."""
    with suppress(AttributeError, TypeError):  # other parts than these
        client, end = _part(_CLIENT)(address=address), time.monotonic() + 30.0
        while time.monotonic() < end and all(each.hex() != node for each in client.get_all_node_info()):
            if not is_needed():
                raise InterruptedError("it is not needed any more")
            time.sleep(LOOK_EVERY_S)
    return get(address, node)


def show_by(show: Callable[[Callable[..., None], dict[str, Any], bool], None]) -> bool:
    """Have `show` called, with Ray's function first, in its place where Ray prints; return whether that is possible."""
    return _replace(_PRINT, lambda ray: partial(show, ray)) is not None


def try_cluster(address: str) -> None:
    """Connect to a cluster for a moment, by RAY_AUTH_MODE as it is now; raise Ray's error if that fails."""
    find, settings = _part("_private.services.canonicalize_bootstrap_address"), _part("_raylet.Config")
    if find is not None and settings is not None:
        settings.initialize("")  # Ray has read the variable on import
        _part(_CLIENT)(address=find(address))


def notice_finished_tasks() -> None:
    """Have Ray Data look often for finished tasks of this process's datasets; by itself it looks every 0.1 s."""
    _replace(_DATA_WAIT, lambda _: LOOK_EVERY_S)


def train_fast(is_private: Callable[[], bool], not_inherited: Callable[[dict[str, str]], Any]) -> None:
    """Have Ray Train start controllers in processes that are ready, and on a private cluster no actor to clean up."""
    trainer, user = "train.v2.api.data_parallel_trainer", _part("train.UserCallback")
    _replace(f"{trainer}.{_VARIABLES}", lambda find: partial(_missing, find, not_inherited))
    _replace(f"{trainer}.{_CLEANER}", lambda make: lambda: user() if is_private() else make())


def control_fast(inherited: dict[str, str]) -> None:
    """Have this controller start workers in processes that are ready, and ask nobody for nodes: no more can come."""
    parts, not_inherited = "train.v2._internal.execution", lambda found: found.items() - inherited.items()
    _replace(f"{parts}.worker_group.worker_group.{_VARIABLES}", lambda find: partial(_missing, find, not_inherited))
    for name in ("after_controller_start", "_maybe_send_resource_request", "_cancel_resource_request"):
        _replace(f"{parts}.scaling_policy.fixed.FixedScalingPolicy.{name}", lambda _: lambda *_: None)


def _missing(find: Callable[[], dict[str, str]], not_inherited: Callable[[dict[str, str]], Any]) -> dict[str, str]:
    return found if not_inherited(found := find()) else _Inherited()


class _Inherited(dict[str, str]):  # no variables, where Ray Train adds one that is inherited too
    def setdefault(self, *_: Any) -> str:
        return ""


def kuberay_config(namespace: str, name: str) -> Any:
    """Return a RayCluster of Kubernetes as a configuration of Ray's autoscaler; None if it adds no nodes."""
    client = _part("autoscaler._private.kuberay.node_provider.KubernetesHttpApiClient")
    cluster = client(namespace=namespace).get(f"rayclusters/{name}") if client else {}
    derive = _part("autoscaler._private.kuberay.autoscaling_config._derive_autoscaling_config_from_ray_cr")
    return derive(cluster) if derive and cluster.get("spec", {}).get("enableInTreeAutoscaling") else None


def aws_nodes() -> Any:
    """Return Ray's class of nodes at AWS, for a cluster file that asks for one of raysl's, whatever is switched off."""
    return pkgutil.resolve_name("ray.autoscaler._private.aws.node_provider.AWSNodeProvider")
