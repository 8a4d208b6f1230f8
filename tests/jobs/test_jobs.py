"""The entry scripts, run as jobs on a Ray head of their own."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ray_nodes import RAY, client_environment, end_node, free_ports, start_node, wait_for_port

ROOT = Path(__file__).parents[2]
SHIPPED = ("raysl", "configs", "jobs")
WAIT_FOR_A_SAVE = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}

pytestmark = pytest.mark.slow


@dataclass
class Job:
    """A job, and what `ray job submit` prints while it runs: the job's log."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def log(self) -> str:
        """Without what the command says itself."""
        lines = re.sub(r"\x1b\[[0-9;]*m", "", self.output.read_text()).splitlines()
        return "\n".join(line for line in lines if line and not re.match(r"\d{4}-\d\d-\d\d .* -- ", line))

    def until(self, holds: Callable[[], bool], timeout: float = 150.0) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def ended(self) -> int:
        return self.process.wait(150)


@dataclass
class Head:
    """A Ray head of two CPUs, and a working directory whose raysl says in its version that it was shipped."""

    address: str
    working_dir: Path

    def submit(self, name: str, *words: str) -> Job:
        output = self.working_dir.parent / f"{name}.log"
        options = [f"--submission-id={name}", f"--runtime-env-json={json.dumps(WAIT_FOR_A_SAVE)}"]
        command = [RAY, "job", "submit", f"--address={self.address}", f"--working-dir={self.working_dir}", *options]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--", "python", *words], stdout=file, stderr=file, env=client_environment()
            )
        return Job(name, process, output)

    def stop(self, job: Job) -> None:
        command = [RAY, "job", "stop", f"--address={self.address}", job.name]
        subprocess.run(command, check=True, capture_output=True, env=client_environment())
        job.ended()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    ports = free_ports(4)
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    folder = tmp_path_factory.mktemp("head")
    process = start_node("--head", "--num-cpus=2", f"--temp-dir={sessions}", *words, log=folder / "head.log")
    try:
        wait_for_port(ports[1], process)
        yield Head(f"http://127.0.0.1:{ports[1]}", _working_dir(folder / "shipped"))
    finally:
        end_node(process)
        shutil.rmtree(sessions, ignore_errors=True)


def _working_dir(folder: Path) -> Path:
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "raysl" / "__init__.py"
    init.write_text(init.read_text() + '\n__version__ = "shipped"\n')
    return folder


def _meta(checkpoint: Path) -> dict[str, object]:
    return dict(json.loads((checkpoint / "meta.json").read_text()))


def _steps(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_trains_with_the_shipped_raysl_and_its_log_ends_with_the_run(head: Head, tmp_path: Path) -> None:
    words = ["jobs/pretrain.py", "quickstart", "--low-resource", "benchmarks=[]", f"storage={tmp_path}", "name=short"]
    job = head.submit("short", *words)
    assert job.ended() == 0, job.log
    run = tmp_path / "short"
    *_, place, note = job.log.splitlines()
    assert place.split() == ["run", str(run)]
    assert note.startswith("note        --low-resource")
    (checkpoint,) = run.glob("checkpoint_0*")
    assert _meta(checkpoint)["step"] == 30
    assert _meta(checkpoint)["raysl"] == "shipped"


def test_a_stopped_job_leaves_a_checkpoint_from_which_the_next_one_goes_on(head: Head, tmp_path: Path) -> None:
    settings = ["train.epochs=200", "train.checkpoint_every=100%", "train.online_knn_every=null", "benchmarks=[]"]
    words = ["jobs/pretrain.py", "quickstart", "--low-resource", *settings, f"storage={tmp_path}", "name=long"]
    run = tmp_path / "long"
    job = head.submit("long", *words)
    job.until(lambda: bool(_steps(run)))
    assert not list(run.glob("checkpoint_0*"))
    head.stop(job)
    (checkpoint,) = run.glob("checkpoint_0*")
    step = _meta(checkpoint)["step"]
    assert isinstance(step, int)
    assert 0 < step < 200 * 15
    assert f"stopped at step {step} of 3000" in job.log

    again = head.submit("long-again", *words)
    again.until(lambda: _steps(run)[-1] > step)
    head.stop(again)
    assert f"resumed at step {step}" in again.log
    assert _steps(run) == sorted(set(_steps(run)))
    assert sorted(run.glob("checkpoint_0*"))[-1] > checkpoint
