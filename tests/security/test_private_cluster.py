"""A private cluster is this user's alone: what it listens on, and who may read its token."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, psutil
from raysl.cluster.connection import connect, disconnect
connect()
import ray
ray.get(ray.remote(lambda: 1).remote())
addresses = []
for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            addresses.append([process.name(), one.laddr.ip])
print(json.dumps(addresses))
disconnect()
"""


@pytest.mark.cluster
def test_a_private_cluster_listens_on_loopback_and_keeps_its_token(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    left_out = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**variables, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    addresses = json.loads(done.stdout.splitlines()[-1])
    assert addresses
    assert [one for one in addresses if one[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []
    token = tmp_path / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
