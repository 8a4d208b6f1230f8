"""A Ray head of its own for tests, and the jobs that are submitted to it."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ray_nodes import RAY, client_environment, end_node, free_ports, start_node, wait_for_port

ROOT = Path(__file__).parents[2]
SHIPPED = ("raysl", "configs", "jobs", "perf")
WAIT_FOR_A_SAVE = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}


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

    def ended(self, timeout: float = 150.0) -> int:
        return self.process.wait(timeout)


@dataclass
class Head:
    """A Ray head of two CPUs, and a working directory whose raysl says in its version that it was shipped."""

    address: str
    working_dir: Path

    def submit(self, name: str, *words: str) -> Job:
        options = [f"--submission-id={name}", f"--runtime-env-json={json.dumps(WAIT_FOR_A_SAVE)}"]
        command = ["ray", "job", "submit", f"--address={self.address}", f"--working-dir={self.working_dir}", *options]
        return self.run(name, [*command, "--", "python", *words])

    def run(self, name: str, command: list[str]) -> Job:
        """Run a `ray job submit` command, whose log goes by this name."""
        output = self.working_dir.parent / f"{name}.log"
        with output.open("wb") as file:
            process = subprocess.Popen([RAY, *command[1:]], stdout=file, stderr=file, env=client_environment())
        return Job(name, process, output)

    def stop(self, job: Job) -> None:
        command = [RAY, "job", "stop", f"--address={self.address}", job.name]
        subprocess.run(command, check=True, capture_output=True, env=client_environment())
        job.ended()


@contextmanager
def started_head(folder: Path) -> Iterator[Head]:
    """Start a head with this folder for its log and what is shipped to it."""
    ports = free_ports(4)
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
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
