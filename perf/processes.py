"""Starting contenders: as child processes, and as runs of Ray Train."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from perf import checkouts
from perf.contenders import fit_on_ray
from perf.turns import Starter
from raysl.errors import RunFailed

END_S = 30.0  # a contender has so long to end after its last turn


class Task(Protocol):
    """Settings of a contender to start."""

    @property
    def name(self) -> str:
        """Name of the contender."""

    @property
    def folder(self) -> str:
        """Folder for its files."""

    @property
    def world(self) -> int:
        """Number of its processes."""

    def to_json(self) -> str:
        """Return it as one argument of a command line."""


T = TypeVar("T", bound=Task)


class Running(Protocol):
    """A contender that has been started."""

    def check(self) -> None:
        """Raise RunFailed with its last output if it has ended with an error."""

    def end(self) -> None:
        """Wait for its end, and kill it after a while. Connections must be closed before."""


class Child:
    """One process, or several under torchrun."""

    def __init__(self, program: str, task: Task, module: str = "perf.contenders") -> None:
        command = [sys.executable, "-m", module, program, task.to_json()]
        if task.world > 1:
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={task.world}", "-m"]
            command = [sys.executable, "-m", *torchrun, *command[2:]]
        self._start(task, command)

    def _start(self, task: Task, command: Sequence[str], checkout: Path | None = None) -> None:
        self.task = task
        self.log = Path(task.folder) / f"{task.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=checkout,
                env=None if checkout is None else checkouts.environment(checkout),
            )

    def check(self) -> None:
        if self.process.poll():
            output = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
            raise RunFailed(f"contender {self.task.name} ended with code {self.process.returncode}:\n{output}")

    def end(self) -> None:
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


class CheckoutChild(Child):
    """One process that runs the code of a checkout of raysl."""

    def __init__(self, program: str, task: Task, checkout: Path) -> None:
        self._start(task, checkouts.command(checkout, program, task.to_json()), checkout)


class RayRun:
    """A run of Ray Train on this machine, driven by a thread."""

    def __init__(self, task: Task, program: Callable[[dict[str, Any]], None] = fit_on_ray) -> None:
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        self.task = task
        self.error: Exception | None = None
        self.trainer = TorchTrainer(
            program,
            train_loop_config={"task": task},
            scaling_config=ScalingConfig(
                num_workers=task.world,
                resources_per_worker={"CPU": 0, "memory": 1 << 20},  # a fraction of a CPU would cost Ray Data a whole
                label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
            ),
            run_config=RunConfig(name=task.name, storage_path=task.folder),
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def check(self) -> None:
        if self.error is not None:
            raise RunFailed(f"contender {self.task.name} failed: {self.error}") from self.error

    def end(self) -> None:
        self.thread.join(END_S)

    def _run(self) -> None:
        try:
            self.trainer.fit()
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` passes it on
            self.error = error


class Lineup(Generic[T]):
    """The started contenders, each waiting for its turn."""

    def __init__(self, starter: Starter) -> None:
        self.starter = starter
        self.running: dict[str, Running] = {}

    def add(self, start: Callable[[T], Running], task: T) -> int:
        """Start a contender, wait until it is ready, and return its niceness."""
        running = self.running[task.name] = start(task)
        hellos = self.starter.wait_for(task.name, task.world, running.check)
        niceness: list[int] = [hello["niceness"] for hello in hellos]
        return max(niceness)

    def end(self) -> None:
        """Wait for the end of all."""
        for running in self.running.values():
            running.end()


def idle_cpus(seconds: float) -> float | None:
    """Return the CPUs in use by this process and its children over the next seconds; None if unknown."""
    before = cpu_seconds()
    start = time.perf_counter()
    time.sleep(seconds)
    after = cpu_seconds()
    if before is None or after is None:
        return None
    return (after - before) / (time.perf_counter() - start)


def cpu_seconds() -> float | None:
    """Return the CPU time of this process and its living children, all together; None without /proc."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(values[1]), int(values[11]) + int(values[12])
    if os.getpid() not in parents:
        return None
    ours = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= children
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")
