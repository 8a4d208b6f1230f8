"""No credential of a sweep's environment stands in the logs of Ray, in the sweep's folder or in its output."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysl.storage.folder import Folder
from tests.bucket import Bucket
from tests.ray_nodes import client_environment
from tests.runs.runs import SMALL

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAhushhushhush1",
    "AWS_SECRET_ACCESS_KEY": "hushhushhush2/hushhush",
    "AWS_SESSION_TOKEN": "hushhushhush3==",
    "AWS_SECURITY_TOKEN": "hushhushhush4==",
    "AZURE_CLIENT_SECRET": "hushhushhush5",
    "HF_TOKEN": "hf_hushhushhushhushhush6",
    "WANDB_API_KEY": "hushhushhush7",
}
SPACE = "trials: 2\nspace:\n  optim.lr: {loguniform: [0.01, 2.0]}\n"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    pytest.importorskip("moto.server")
    bucket = Bucket(tmp_path)
    yield bucket
    bucket.close()


@pytest.mark.slow
def test_a_sweep_in_a_bucket_writes_no_credential_anywhere(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Path(tempfile.mkdtemp(prefix="ray_"))  # short: the paths of its sockets have a limit
    (tmp_path / "search.yaml").write_text(SPACE)
    words = [*SMALL, "train.epochs=1", f"storage={bucket.uri()}", "name=s", "metric=loss", "mode=min", "scheduler=none"]
    environment = client_environment() | bucket.environment | SECRETS | {"RAY_TMPDIR": str(sessions)}
    command = [sys.executable, "-m", "raysl", "sweep", str(tmp_path / "search.yaml"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, value in (bucket.environment | SECRETS).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "run").mkdir()
    Folder(bucket.uri("runs/s")).download(tmp_path / "run")
    logs = [path for path in sessions.rglob("*") if path.is_file()]
    assert any(path.name.startswith("runtime_env_agent") for path in logs), "the logs of Ray are not there"
    files = [*logs, *(path for path in (tmp_path / "run").rglob("*") if path.is_file())]
    texts = {str(path): path.read_bytes() for path in files} | {"output": (done.stdout + done.stderr).encode()}
    leaks = {name: [path for path, text in texts.items() if value.encode() in text] for name, value in SECRETS.items()}
    assert leaks == {name: [] for name in SECRETS}
    shutil.rmtree(sessions, ignore_errors=True)
