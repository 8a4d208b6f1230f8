"""A run on two nodes of which one does not see the folder of the run."""

import subprocess
from pathlib import Path

import pytest

from tests.ray_nodes import client_environment, some_nodes
from tests.runs.runs import start

pytestmark = pytest.mark.slow


def test_a_local_storage_that_a_node_does_not_share_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not give a process other mounts than its own")
    storage = tmp_path / "runs"
    storage.mkdir()
    with some_nodes(tmp_path, 1, 3, before=f"mount -t tmpfs none {storage}") as address:
        for name, value in {**client_environment(), "RAY_ADDRESS": address}.items():
            monkeypatch.setenv(name, value)
        process = start(storage, "one", "train.workers=2", "train.cpus_per_worker=1")
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output
    assert f"storage {storage}/one is a local folder that the node" in output
    assert "do not share with the driver" in output
    assert "Traceback" not in output
    assert not (storage / "one" / "metrics.jsonl").exists()
    assert not list((storage / "one").glob("checkpoint_*"))
