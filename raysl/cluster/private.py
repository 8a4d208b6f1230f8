"""Private parts of Ray: starting a cluster with the processes that training needs, how long Ray waits, what it logs."""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray._private.node
import ray._private.ray_constants
import ray._private.services
import ray._private.state
from ray._private.authentication import authentication_token_setup as token_setup

from raysl.redact import HIDDEN, redact_variables

LOOK_EVERY_S = 0.02
TASKS_EVERY_S = 0.02
"""Seconds between looks for a node that starts, and for data tasks that have ended."""
AT_ONCE = 4
"""Processes that a private cluster has ready, on more than one CPU: a run needs these for its controller, its workers,
what hands them their datasets and what keeps them in step."""
_PRESTART = "--num_prestart_python_workers="


class NotNeeded(Exception):
    """A cluster is not needed any more while it starts."""


def _always() -> bool:
    return True


@contextmanager
def starting_less(is_needed: Callable[[], bool] = _always) -> Iterator[None]:
    """Have `ray.init` start no more than a cluster of one node needs, while inside.

    It leaves out the server of the dashboard, which Ray starts and waits for even where no dashboard is asked for, and
    the monitor that would ask for more nodes. It has a few processes started for what will run, where Ray starts one a
    CPU. It looks often for the node to be up; Ray looks after one, two and five seconds.

    Args:
        is_needed: whether to go on waiting for the node; if not, `ray.init` raises `NotNeeded`.
    """
    services, node = ray._private.services, ray._private.node.Node
    start = services.start_ray_process

    def start_with_few(command: list[str], *arguments: Any, **options: Any) -> Any:
        few = f"{_PRESTART}{AT_ONCE if (os.cpu_count() or 1) > 1 else 0}"
        words = [few if word.startswith(_PRESTART) else word for word in command]
        return start(words, *arguments, **options)

    with ExitStack() as stack:
        stack.enter_context(_replaced(services, "start_api_server", lambda *_, **__: (None, None)))
        stack.enter_context(_replaced(services, "start_ray_process", start_with_few))
        stack.enter_context(_replaced(node, "start_monitor", lambda self: None))
        stack.enter_context(looking_often(is_needed))
        yield


@contextmanager
def looking_often(is_needed: Callable[[], bool] = _always) -> Iterator[None]:
    """Have `ray.init` notice soon that its node is up, or that it is not needed, while inside."""
    get_node = ray._private.services.get_node

    def wait_and_get(gcs_address: str, node_id: str) -> Any:
        _wait_for_node(gcs_address, node_id, is_needed)
        return get_node(gcs_address, node_id)

    with _replaced(ray._private.services, "get_node", wait_and_get):
        yield


@contextmanager
def on_loopback() -> Iterator[None]:
    """Have a cluster that is started inside listen on the loopback address only, as Ray does by itself on macOS.

    Ray replaces a loopback address that it is given by that of the machine, and its servers then listen everywhere.
    """
    with _replaced(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


def keep_token_private() -> None:
    """Let only this user read the token of its clusters; Ray writes it when the first one starts, readable by all."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    loader = token_setup.AuthenticationTokenLoader.instance()
    if not loader.has_token(ignore_auth_mode=True):
        before = os.umask(0o077)
        try:
            token_setup.generate_and_save_token()
        finally:
            os.umask(before)
        loader.reset_cache()
    path = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # of another user, or given by a variable in place of a file
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def notice_finished_tasks() -> bool:
    """Have Ray Data look for finished tasks of this process's datasets often; by itself it looks every 0.1 s.

    Returns:
        Whether this version of Ray has the setting.
    """
    try:
        executor = importlib.import_module("ray.data._internal.execution.streaming_executor_state")
    except ImportError:
        return False
    name = "WAIT_FOR_TASK_COMPLETION_TIMEOUT_S"
    if not hasattr(executor, name):
        return False
    setattr(executor, name, TASKS_EVERY_S)
    return True


def keep_credentials_out() -> None:
    """Have Ray Tune hand no credentials to the processes of trials, since Ray writes what it hands over into its logs.

    Those processes have the credentials of their node, as training workers have.
    """
    from ray.tune.execution import class_cache

    names = class_cache.ENV_VARS_TO_PROPAGATE
    shown = redact_variables(dict.fromkeys(names, "value"))
    names.difference_update(name for name, value in shown.items() if value == HIDDEN)


def _wait_for_node(gcs_address: str, node_id: str, is_needed: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait until a node has registered; after the limit return all the same, and let Ray say what is wrong."""
    state = ray._private.state.GlobalState()
    state._initialize_global_state(ray._private.services._get_gcs_client_options(gcs_address))
    end = time.monotonic() + limit_s
    while time.monotonic() < end and all(node["NodeID"] != node_id for node in state.node_table()):
        if not is_needed():
            raise NotNeeded
        time.sleep(LOOK_EVERY_S)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    former = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)
