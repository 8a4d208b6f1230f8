"""A run of a user's own components on data that asks who one is, from the middle to its report and after."""

import subprocess
import sys
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState
from tests.data.samples import png
from tests.runs.runs import SMALL
from tests.test_redact import Guarded, website  # noqa: F401
from tests.test_trust import MINE

pytestmark = pytest.mark.slow


def raysl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raysl", *words], capture_output=True, text=True, timeout=300)


def test_own_code_and_credentials_serve_a_run_and_stay_with_its_user(
    tmp_path: Path,
    website: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = "".join(f"{number}.png {number % 3}\n" for number in range(24)).encode()
    images = {f"/{number}.png": b"broken" if number == 7 else png(number) for number in range(24)}
    monkeypatch.setattr(Guarded, "files", {"/train.txt": listed, "/test.txt": listed, **images})
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "mark")))
    monkeypatch.setenv("MY_SECRET", "SeCrEt")
    data = [f"data.{name}=http://me:$MY_SECRET@{website}/{name}.txt" for name in ("train", "test")]
    own = [f"method.name={tmp_path}/mine.py:Method", f"backbone.name={tmp_path}/mine.py:Net"]
    out = ("data.limit", "train.batch", "train.epochs", "train.online", "benchmarks")
    words = [*(word for word in SMALL if not word.startswith(out)), *own, "data=file_list", *data]
    words += ["data.max_corrupt=0.5", "train.batch_size=8", "train.epochs=4", "train.online_knn_every=1ep"]
    words += ["benchmarks=[knn]", f"storage=file://{tmp_path}/runs?secret_key=$MY_SECRET", "name=one"]
    config = load_config("quickstart", words)
    folder = RunFolder.of(config)
    folder.claim(config)
    state = TrainState.create(Setup.of(config, 24, 3))
    state.step = 6
    state.save(Path(folder.path) / "checkpoint_000000006", {})

    trained = raysl("pretrain", "quickstart", *words)
    assert trained.returncode == 0, trained.stderr
    assert "resumed at step 6 of 12" in trained.stderr
    assert "knn" in trained.stdout
    refused = raysl("benchmark", "--checkpoint", f"{tmp_path}/runs/one")
    assert refused.returncode == 2
    assert "is code that is not raysl's" in refused.stderr
    trusted = raysl("benchmark", "--checkpoint", f"{tmp_path}/runs/one", "--trust-code")
    told = f"cannot read 'http://***@{website}/train.txt': 401"
    assert told in trusted.stderr, "the credentials were not stored, so the site refuses"

    for command in (trained, refused, trusted):
        assert "SeCrEt" not in command.stdout + command.stderr
    run = tmp_path / "runs" / "one"
    assert (run / "corrupt.jsonl").is_file()
    for file in (path for path in run.rglob("*") if path.is_file()):
        assert b"SeCrEt" not in file.read_bytes(), file
