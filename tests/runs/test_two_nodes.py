"""A run on two nodes of which one does not see the folder of the run."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.runs import start

pytestmark = pytest.mark.slow


def test_a_local_storage_that_a_node_does_not_share_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not give a process other mounts than its own")
    storage = tmp_path / "runs"
    storage.mkdir()
    (port,) = free_ports(1)
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = (f"--port={port}", f"--temp-dir={sessions}", "--include-dashboard=false")
    nodes = [start_node("--head", "--num-cpus=1", *words, log=tmp_path / "head.log")]
    try:
        wait_for_line("Ray runtime started", tmp_path / "head.log", nodes[0])
        hide = f"mount -t tmpfs none {storage}"
        nodes.append(start_node(f"--address=127.0.0.1:{port}", "--num-cpus=3", log=tmp_path / "node.log", before=hide))
        wait_for_line("Ray runtime started", tmp_path / "node.log", nodes[1])
        for name, value in {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        process = start(storage, "one", "train.workers=2", "train.cpus_per_worker=1")
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 2, output
        assert f"storage {storage}/one is a local folder that the node" in output
        assert "do not share with the driver" in output
        assert "Traceback" not in output
        assert not (storage / "one" / "metrics.jsonl").exists()
        assert not list((storage / "one").glob("checkpoint_*"))
    finally:
        for node in reversed(nodes):
            end_node(node)
        shutil.rmtree(sessions, ignore_errors=True)
