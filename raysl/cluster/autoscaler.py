"""The autoscaler of the connected cluster: what it may add, and what it is adding.

Ray 2.60 tells drivers neither. The limits are in the configuration that the autoscaler on the head node was started
with, or in the RayCluster of Kubernetes, so they are read there.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray._private.worker
import yaml
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

from raysl.cluster.growth import Growth, NodeGroup, read_growth
from raysl.cluster.head import on_head
from raysl.process.proc import PROC

log = logging.getLogger("raysl")

ANSWER_S = 10
MOST = 10_000
"""Nodes of a group without a limit."""
_KUBERNETES = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def read_autoscaler() -> Growth | None:
    """Return what the autoscaler of the connected cluster may add up to; None if that cannot be read."""
    if (growth := _from_ray()) is not None:
        return growth
    port = ray.get_runtime_context().gcs_address.rpartition(":")[2]
    return on_head(read_here, port)


def _from_ray() -> Growth | None:
    """Return what was reported to Ray itself, as hosted platforms do."""
    config = ray._private.state.state.get_cluster_config()
    if config is None or not config.node_group_configs:
        return None
    groups = (
        # a negative number stands for no limit
        NodeGroup(
            group.resources.get("CPU", 0),
            group.resources.get("GPU", 0),
            group.max_count if group.max_count >= 0 else MOST,
        )
        for group in config.node_group_configs
    )
    return Growth(tuple(groups), origin="the cluster's configuration")


def read_here(port: str) -> Growth | None:
    """Return what the autoscaler on this machine, the head node of a cluster, may add up to.

    Args:
        port: of the cluster's control service, which its autoscaler has on its command line.
    """
    if (file := _config_file(port)) is not None:
        try:
            return read_growth(yaml.safe_load(file.read_text()), str(file))
        except (OSError, yaml.YAMLError) as error:
            log.debug("%s cannot be read: %s", file, error)
    return _from_kubernetes()


def _config_file(port: str) -> Path | None:
    for folder in PROC.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended since
            continue
        options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        is_monitor = any(word.endswith("monitor.py") for word in words[:4])
        if is_monitor and options.get("--gcs-address", "").endswith(f":{port}") and "--autoscaling-config" in options:
            return Path(options["--autoscaling-config"]).expanduser()
    return None


def _from_kubernetes() -> Growth | None:
    """Return what KubeRay may add, from the RayCluster: its head pod may read that."""
    name = os.environ.get("RAY_CLUSTER_NAME")
    if not name or not (_KUBERNETES / "namespace").is_file():
        return None
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    try:
        client = KubernetesHttpApiClient(namespace=(_KUBERNETES / "namespace").read_text().strip())
        cluster = client.get(f"rayclusters/{name}")
        if not cluster["spec"].get("enableInTreeAutoscaling"):
            return None
        return read_growth(_derive_autoscaling_config_from_ray_cr(cluster), f"the RayCluster {name}")
    except (OSError, KeyError, ValueError, ValidationError) as error:
        # no right to read it, or no answer: settings say the same
        log.debug("the RayCluster %s cannot be read: %s", name, error)
        return None


@dataclass(frozen=True)
class Activity:
    """What an autoscaler is doing.

    Args:
        is_adding: whether nodes are on their way.
        problem: why a node could not be started; empty if there is none.
        is_infeasible: whether it says that no nodes of it can hold what is asked for.
    """

    is_adding: bool = False
    problem: str = ""
    is_infeasible: bool = False


def read_activity() -> Activity:
    """Return what the autoscaler of the connected cluster is doing now."""
    client = ray._private.worker.global_worker.gcs_client
    reply = GetClusterStatusReply()
    reply.ParseFromString(client.get_cluster_status(timeout_s=ANSWER_S))
    state = reply.autoscaling_state
    if state.autoscaler_state_version:  # version 2 of Ray's autoscaler, with `ray up` and KubeRay
        problems = [failed.reason for failed in state.failed_instance_requests if failed.reason]
        return Activity(
            bool(state.pending_instance_requests or state.pending_instances),
            _first_line(problems[-1]) if problems else "",
            bool(state.infeasible_gang_resource_requests or state.infeasible_resource_requests),
        )
    status: dict[str, Any] = json.loads(client.internal_kv_get(b"__autoscaling_status", None, ANSWER_S) or b"{}")
    report = status.get("autoscaler_report") or {}
    failed = (report.get("node_availability_summary") or {}).get("node_availabilities") or {}
    problems = [
        str((each.get("unavailable_node_information") or {}).get("description") or "") for each in failed.values()
    ]
    return Activity(
        bool(report.get("pending_nodes") or report.get("pending_launches")),
        _first_line(next((problem for problem in problems if problem), "")),
    )


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "").rstrip(".")
