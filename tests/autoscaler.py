"""A Ray cluster that starts with a head without CPUs, to which Ray's own autoscaler adds nodes on this machine."""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line

HEAD_ID = "f" * 51 + "00000"  # of the fake provider
HEAD_GROUP = "ray.head.default"  # likewise
Groups = Mapping[str, Mapping[str, object]]

CPU_NODES: Groups = {
    "cpu": {
        "resources": {"CPU": 2, "object_store_memory": 300_000_000},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 2,
    }
}
"""Up to two nodes with two CPUs each."""


@dataclass(frozen=True)
class AutoscaledCluster:
    """A running head and its autoscaler.

    Args:
        address: for RAY_ADDRESS.
        environment: of a process that uses the cluster, RAY_ADDRESS included.
        config_file: the autoscaler's configuration.
        log: what `ray start` of the head says.
        head_pid: process id of the head.
    """

    address: str
    environment: dict[str, str]
    config_file: Path
    log: Path
    head_pid: int

    def num_nodes(self) -> int:
        """The number of nodes that live beside the head."""
        family = psutil.Process(self.head_pid).children(recursive=True)
        return sum(_is_raylet(process) for process in family) - 1

    def wait_for_nodes(self, num: int, timeout: float = 90.0) -> None:
        """Wait until so many nodes live beside the head."""
        end = time.monotonic() + timeout
        while (now := self.num_nodes()) != num:
            assert time.monotonic() < end, f"{now} nodes in place of {num} after {timeout:g} s"
            time.sleep(0.2)


def _is_raylet(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "raylet" and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.contextmanager
def autoscaled_cluster(
    groups: Groups = CPU_NODES,
    *,
    max_workers: int = 4,
    idle_s: float = 20.0,
    version: int = 2,
    environment: Mapping[str, str] = {},
) -> Iterator[AutoscaledCluster]:
    """Start a head without CPUs, whose autoscaler adds nodes as fake machines; end all of them behind the block.

    Args:
        groups: `available_node_types` beside the head's; keep object_store_memory small.
        max_workers: most nodes beside the head.
        idle_s: seconds after which an idle node is given back.
        version: of Ray's autoscaler; 2 is what `ray up` starts.
        environment: more variables for Ray's processes.
    """
    from ray.autoscaler._private.monitor import BASE_READONLY_CONFIG  # takes a second

    port, agent_port, client_port = free_ports(3)
    folder = Path(tempfile.mkdtemp(prefix="ray_"))  # short: the paths of its sockets have a limit
    address = f"127.0.0.1:{port}"
    config = {
        **BASE_READONLY_CONFIG,  # all lists of commands and files, which must be there
        "cluster_name": "fake",
        "max_workers": max_workers,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 100.0,
        "provider": {
            # not `fake_multinode`, whose file of defaults the wheel of Ray lacks
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
        },
        "available_node_types": {
            HEAD_GROUP: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            **groups,
        },
        "head_node_type": HEAD_GROUP,
    }
    config_file = folder / "autoscaling.json"  # JSON is YAML
    config_file.write_text(json.dumps(config))
    variables = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", **environment}
    if version == 2:
        variables |= {
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
            "RAY_NODE_TYPE_NAME": HEAD_GROUP,
        }
    words = (
        f"--port={port}",
        f"--dashboard-agent-listen-port={agent_port}",
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={folder}",
        f"--autoscaling-config={config_file}",
        "--object-store-memory=200000000",
        "--include-dashboard=false",
    )
    log = folder / "head.log"
    head = start_node("--head", "--num-cpus=0", *words, log=log, environment=variables)
    try:
        wait_for_line("Ray runtime started", log, head)
        client = {**client_environment(), "RAY_ADDRESS": address}
        yield AutoscaledCluster(address, client, config_file, log, head.pid)
    finally:
        end_node(head)
        shutil.rmtree(folder, ignore_errors=True)
