"""The training programs that are compared, as they run in their own processes.

* `bare_loop`: what someone writes by hand with torch: a model, a loss, `torch.optim.SGD`, and DDP on several processes
* `fit_alone`: raysl's loop in processes of its own, as in a notebook or under torchrun
* `fit_on_ray`: raysl's loop in a worker of Ray Train, with what every run observes and reports
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from perf.turns import Gate
from perf.workload import Workload, setup_of
from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.losses import nt_xent
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.process.memory import keep_freed_memory
from raysl.train.callbacks.callback import Callback
from raysl.train.loop import fit
from raysl.train.reporter import LocalReporter, Reporter
from raysl.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Task:
    """Settings of a contender's processes.

    Args:
        name: of the contender.
        socket: where turns are given.
        folder: for what it writes.
        workload: what it trains.
        num_steps: of all its turns.
        world: its processes.
        threads: of torch, in each.
        niceness: of each; one that Ray has made nicer stays so.
    """

    name: str
    socket: str
    folder: str
    workload: Workload
    num_steps: int
    world: int
    threads: int
    niceness: int = 0

    def to_json(self) -> str:
        """Return it as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """Read the result of `to_json`."""
        values = json.loads(text)
        return cls(**values | {"workload": Workload(**values["workload"])})

    def prepare_process(self) -> None:
        """Threads, niceness and memory allocator of this process, so that contenders differ in their loops only."""
        os.nice(max(0, self.niceness - os.nice(0)))
        torch.set_num_threads(self.threads)
        keep_freed_memory()

    def gate(self, batches: list[Batch]) -> Gate:
        """Join the others; from here on this process waits for its turns."""
        return Gate(self.socket, self.name, dist.rank(), batches)


class BareSimCLR(nn.Module):
    """Backbone, projector and loss, without raysl's logging."""

    def __init__(self, workload: Workload, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.backbone = ResNet(workload.backbone)
        self.projector = nn.Sequential(
            nn.Linear(self.backbone.feature_dim, workload.hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(workload.hidden_dim, SimCLR.Config().output_dim),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The loss of views [B, V, C, H, W]."""
        h = self.backbone(images.flatten(0, 1))  # [B*V, D]
        z = self.projector(h).unflatten(0, images.shape[:2])  # [B, V, P]
        with dist.planned_rows([len(z)] * dist.world()):
            return nt_xent(z, dist.all_gather(z), dist.own_rows(z), self.temperature)


def bare_loop(task: Task) -> None:
    """A training loop of six lines; torchrun starts several processes."""
    torch.manual_seed(0)
    with _joined(task):
        model: nn.Module = BareSimCLR(task.workload)
        if task.world > 1:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.workload.lr, momentum=0.9, weight_decay=1e-6)
        model.train()
        for batch in task.gate(task.workload.batches(dist.rank())).from_step(0):
            loss = model(batch.views["global"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def fit_alone(task: Task) -> None:
    """raysl's loop without callbacks and files; torchrun starts several processes."""
    with _joined(task):
        _fit(task, LocalReporter(), [])


def fit_on_ray(settings: dict[str, Any]) -> None:
    """raysl's loop with the reporter and the callbacks of `raysl pretrain`; Ray Train calls it in every worker."""
    from raysl.runs.folder import STOP_FILE, RunFolder
    from raysl.runs.ray_reporter import RayReporter
    from raysl.train.callbacks.logs import MetricsLog, Startup
    from raysl.train.callbacks.stop import StopRequest
    from raysl.train.callbacks.tensorboard import TensorBoard

    task: Task = settings["task"]
    task.prepare_process()
    folder = RunFolder(f"{task.folder}/{task.name}")
    logs = Path(folder.path)
    observers = [
        Startup(logs, {"command": time.time()}),
        StopRequest(lambda: folder.exists(STOP_FILE), every=1),
        MetricsLog(logs),
        TensorBoard(logs),
    ]
    _fit(task, RayReporter(folder, logs, keep=2), observers)


@contextmanager
def _joined(task: Task) -> Iterator[None]:
    """Join the process group of torchrun; a single process needs none."""
    if task.world == 1:
        yield
        return
    torch.distributed.init_process_group("gloo")
    yield
    torch.distributed.destroy_process_group()


def _fit(task: Task, reporter: Reporter, callbacks: list[Callback]) -> None:
    config = task.workload.config(task.name, Path(task.folder), task.num_steps, task.world, task.threads)
    setup = setup_of(config)
    state = TrainState.create(setup)
    model = dist.data_parallel(state.method)
    gate = task.gate(task.workload.batches(dist.rank()))
    fit(state, model, setup.plan, gate, callbacks=callbacks, reporter=reporter)


def main() -> None:
    """`python -m perf.contenders bare_loop|fit_alone TASK`."""
    program, text = sys.argv[1:]
    task = Task.from_json(text)
    task.prepare_process()
    {"bare_loop": bare_loop, "fit_alone": fit_alone}[program](task)


if __name__ == "__main__":
    main()
