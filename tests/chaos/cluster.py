"""A cluster of several nodes on this machine, which lose their power one by one."""

import subprocess
import sys
from pathlib import Path

from tests.chaos.harness import Workplace
from tests.ray_nodes import RAY, client_environment, end_node, free_ports, start_node, wait_for_line, wait_for_port

PLACEMENT_GROUPS = """
import ray
from ray.util import placement_group_table
ray.init(log_to_driver=False, logging_level="ERROR")
print(*[group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"])
"""


class Cluster:
    """A head and nodes, whose processes carry the mark of a workplace.

    Args:
        folder: for logs.
        workplace: of the run on it.
        words: of `ray start` of the head.
        is_watched: whether the head ends when one of its daemons does, as with `ray start --block`.
    """

    def __init__(self, folder: Path, workplace: Workplace, *words: str, is_watched: bool = True) -> None:
        self.folder, self.workplace = folder, workplace
        ports = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
        self.ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self.nodes: list[subprocess.Popen[bytes]] = []
        at = [f"--{name}={port}" for name, port in self.ports.items()]
        head = ["--head", f"--temp-dir={workplace.temporary}/r", *at, *words]
        if is_watched:
            self._start(*head)
        else:
            command = [RAY, "start", "--disable-usage-stats", *head]
            subprocess.run(
                command, check=True, capture_output=True, env={**client_environment(), **workplace.environment}
            )
        self.client = {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{self.ports['port']}"}
        workplace.environment |= {name: self.client[name] for name in ("RAY_ADDRESS", "RAY_AUTH_MODE")}

    @property
    def jobs(self) -> str:
        """Address of the server of jobs, once it listens."""
        port = self.ports["dashboard-port"]
        wait_for_port(port, self.nodes[0] if self.nodes else None)
        return f"http://127.0.0.1:{port}"

    def add(self, *words: str) -> subprocess.Popen[bytes]:
        """Start one more node."""
        return self._start(f"--address=127.0.0.1:{self.ports['port']}", *words)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"node-{len(self.nodes)}.log"
        node = start_node(*words, log=log, environment=self.workplace.environment)
        self.nodes.append(node)
        wait_for_line("Ray runtime started", log, node)
        return node

    def placement_groups(self) -> list[str]:
        """States of the placement groups that are not removed."""
        command = [sys.executable, "-c", PLACEMENT_GROUPS]
        done = subprocess.run(command, env=self.client, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [f"a placement group {state}" for state in done.stdout.split()]

    def close(self) -> None:
        """End all nodes."""
        for node in reversed(self.nodes):
            if node.poll() is None:
                end_node(node)
