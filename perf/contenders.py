"""The training programs that `python -m perf step` compares, as they run in their own processes.

* `bare_loop`: what someone writes by hand with torch: a model, a loss, `torch.optim.SGD`, and DDP on several processes
* `fit_alone`: raysl's loop in processes of its own, as in a notebook or under torchrun
* `fit_on_ray`: raysl's loop in a worker of Ray Train, with what every run observes and reports

All train SimCLR on a few batches made beforehand, so that only steps are measured.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from perf.harness import Numbers
from perf.processes import Gate, join, prepare_process
from raysl import distributed as dist
from raysl.config.schema import RunConfig, TrainConfig
from raysl.data.batch import Batch
from raysl.data.decode.images import read_images
from raysl.data.sources.synthetic import Synthetic
from raysl.losses import nt_xent
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.sgd import SGD
from raysl.plan.setup import Setup
from raysl.schedule import Duration
from raysl.train.callbacks.callback import Callback
from raysl.train.loop import fit
from raysl.train.reporter import LocalReporter, Reporter
from raysl.train.state import TrainState
from raysl.transforms.functional import normalize
from raysl.transforms.recipes import MultiCrop

NUM_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A ResNet for small images under SimCLR with SGD, in fp32, each process normalising its own batch of two views."""

    batch_size: int = 64  # of each process
    image_size: int = 32
    depth: Literal[10, 18, 34, 50] = 18
    width: int = 64
    hidden_dim: int = 2048  # of the projector
    lr: float = 0.03

    @property
    def backbone(self) -> ResNet.Config:
        """Settings of the network."""
        return ResNet.Config(depth=self.depth, width=self.width, stem="cifar")

    @property
    def views(self) -> MultiCrop:
        """SimCLR's views, of this size."""
        return replace(SimCLR.Config().views, size=self.image_size)

    def config(self, name: str, storage: Path, num_steps: int, world: int, threads: int) -> RunConfig:
        """Return a run of `num_steps` that saves at its end and logs as often as by default."""
        batch_size = self.batch_size * world
        return RunConfig(
            name=name,
            storage=str(storage),
            method=SimCLR.Config(
                hidden_dim=self.hidden_dim, projector_norm=False, output_norm="none", views=self.views
            ),
            backbone=self.backbone,
            data=Synthetic.Config(image_size=self.image_size, num_train=batch_size * num_steps),
            optim=SGD.Config(lr=self.lr, lr_scaling="none", schedule="constant", warmup=Duration(0, "st")),
            train=TrainConfig(
                epochs=1, batch_size=batch_size, workers=world, threads=threads, precision="fp32", sync_bn=False
            ),
        )

    def batches(self, rank: int) -> list[Batch]:
        """Return the batches of one process: a function of its rank."""
        config = Synthetic.Config(image_size=self.image_size)
        split = Synthetic(config).required("train")
        batches = []
        for number in range(NUM_BATCHES):
            first = (rank * NUM_BATCHES + number) * self.batch_size
            index = np.arange(first, first + self.batch_size)
            rows = read_images(split, index)
            views = self.views.recipe()(rows.pictures[0].images, index, seed=0, epoch=0)
            floats = {group: normalize(view, config.mean, config.std) for group, view in views.items()}
            batches.append(Batch(floats, torch.from_numpy(index), torch.from_numpy(rows.labels)))
        return batches


@dataclass(frozen=True, kw_only=True)
class Task:
    """Settings of a contender's processes."""

    name: str
    socket: str  # of the lineup
    folder: str  # for its files
    workload: Workload
    num_steps: int  # of all its turns
    world: int  # number of its processes
    threads: int  # of torch in each
    niceness: int  # of each

    def gate(self) -> Gate:
        """Join the lineup; from here on this process waits for its turns."""
        line = join(self.socket, self.name, dist.rank())
        return Gate(line, cycle(self.workload.batches(dist.rank())))

    def fit(self, reporter: Reporter, callbacks: list[Callback]) -> None:
        """Train with raysl's loop."""
        config = self.workload.config(self.name, Path(self.folder), self.num_steps, self.world, self.threads)
        setup = setup_of(config)
        state = TrainState.create(setup)
        model = dist.data_parallel(state.method)
        fit(state, model, setup.plan, self.gate(), callbacks=callbacks, reporter=reporter)


def setup_of(config: RunConfig) -> Setup:
    """Return the setup of a workload."""
    assert isinstance(config.data, Synthetic.Config)
    return Setup.of(config, config.data.num_train, config.data.num_classes)


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
    with _process_group(task):
        model: nn.Module = BareSimCLR(task.workload)
        if task.world > 1:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.workload.lr, momentum=0.9, weight_decay=1e-6)
        model.train()
        for batch in task.gate().from_step(0):
            loss = model(batch.views["global"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def fit_alone(task: Task) -> None:
    """raysl's loop without callbacks and files; torchrun starts several processes."""
    with _process_group(task):
        task.fit(LocalReporter(), [])


def fit_on_ray(settings: Numbers) -> None:
    """raysl's loop with the reporter and the callbacks of `raysl pretrain`; Ray Train calls it in every worker."""
    from raysl.runs.folder import STOP_FILE, RunFolder
    from raysl.runs.ray_reporter import RayReporter
    from raysl.train.callbacks.logs import MetricsLog, Startup
    from raysl.train.callbacks.stop import StopRequest
    from raysl.train.callbacks.tensorboard import TensorBoard
    from raysl.train.disk import Disk

    task: Task = settings["task"]
    prepare_process(task.niceness, task.threads)
    folder = RunFolder(f"{task.folder}/{task.name}")
    logs = Path(folder.path)
    disk = Disk(logs)
    observers = [
        Startup(disk, {"command": time.time()}),
        StopRequest(lambda: folder.exists(STOP_FILE)),
        MetricsLog(logs),
        TensorBoard(logs),
    ]
    task.fit(RayReporter(folder, disk, keep=2), observers)


PROGRAMS = {"bare_loop": bare_loop, "fit_alone": fit_alone}


def run_contender(program: str, workload: Numbers, **settings: Any) -> None:
    """Run one of `PROGRAMS` in this process."""
    task = Task(workload=Workload(**workload), **settings)
    prepare_process(task.niceness, task.threads)
    PROGRAMS[program](task)


@contextmanager
def _process_group(task: Task) -> Iterator[None]:
    """Join the process group of torchrun; a single process needs none."""
    if task.world > 1:
        torch.distributed.init_process_group("gloo")
    yield
    if task.world > 1:
        torch.distributed.destroy_process_group()
