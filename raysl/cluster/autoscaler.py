"""The autoscaler of the connected cluster: what it may add, and what it is adding.

Ray does not tell drivers what may be added. That is in the configuration that the autoscaler on the head node was
started with, or in the RayCluster of Kubernetes, so it is read there.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import ray
import yaml

from raysl.cluster.growth import Growth, read_growth
from raysl.cluster.private import kuberay_config
from raysl.cluster.tasks import on_head
from raysl.process.proc import PROC

log = logging.getLogger("raysl")

ANSWER_S = 10
_KUBERNETES = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def read_autoscaler() -> Growth | None:
    """Return what the autoscaler of the connected cluster may add up to; None if that cannot be read."""
    port = ray.get_runtime_context().gcs_address.rpartition(":")[2]
    return on_head(read_here, port)


def read_here(port: str) -> Growth | None:
    """Return what the autoscaler on this machine, the head node of a cluster, may add up to.

    Args:
        port: port of the cluster's control service, which its autoscaler has on its command line.
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

    try:
        config = kuberay_config((_KUBERNETES / "namespace").read_text().strip(), name)
        return None if config is None else read_growth(config, f"the RayCluster {name}")
    except (OSError, KeyError, ValueError, ValidationError) as error:
        # no right to read it, or no answer: settings say the same
        log.debug("the RayCluster %s cannot be read: %s", name, error)
        return None


@dataclass(frozen=True)
class Activity:
    """What an autoscaler is doing."""

    is_adding: bool = False
    problem: str = ""


def read_activity() -> Activity:
    """Return what the autoscaler of the connected cluster is doing now; nothing is known of its version 1."""
    from ray.autoscaler.v2.sdk import get_cluster_status  # takes a while

    now = get_cluster_status(ray.get_runtime_context().gcs_address, ANSWER_S)
    problems = [failed.details for failed in now.failed_launches if failed.details]
    lines = problems[-1].strip().splitlines() if problems else []
    return Activity(bool(now.pending_launches or now.pending_nodes), lines[0].rstrip(".") if lines else "")
