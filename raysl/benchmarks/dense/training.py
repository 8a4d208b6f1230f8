"""One training of a benchmark: a method on a copy of the measured network, by the loop that pre-trains."""

import copy
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Benchmark, Context
from raysl.benchmarks.dense.keeper import Keeper
from raysl.benchmarks.suite.code import code_of
from raysl.benchmarks.suite.locations import content_of
from raysl.config.dump import plain
from raysl.config.schema import MethodConfig, OptimConfig, RunConfig, TrainConfig
from raysl.data.batch import DataInfo
from raysl.errors import ConfigError
from raysl.methods.method import Method
from raysl.methods.place import place, prepare_device
from raysl.nn.backbones.backbone import Backbone
from raysl.optim.build import build_optimizer
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train.batches import BatchStream
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.loop import fit
from raysl.train.state import TrainState

log = logging.getLogger("raysl")


@dataclass(frozen=True)
class Course:
    """What is trained, how and for how long.

    Args:
        method: class of what is trained.
        settings: of the method.
        optim: optimizer and learning rate.
        iterations: updates.
        batch_size: images of an update, over all ranks.
        precision: as `train.precision`.
        clip_grad: largest norm of the gradient, or None.
        checkpoint_every: how often a checkpoint is saved.
        num_samples, num_classes, fingerprint: of the training images.
        version: see `version_of`.
    """

    method: type[Method]
    settings: MethodConfig
    optim: OptimConfig
    iterations: int
    batch_size: int
    precision: str
    clip_grad: float | None
    checkpoint_every: Duration
    num_samples: int
    num_classes: int
    fingerprint: str
    version: str

    def config(self, context: Context) -> RunConfig:
        """The course as settings of a run, on the measured one's backbone and normalisation."""
        epoch_len = self.num_samples // self.batch_size
        return RunConfig(
            name=self.settings.name.rpartition(":")[2].lower(),
            seed=context.seed,
            method=self.settings,
            backbone=replace(context.checkpoint.config.backbone, freeze=()),
            data=replace(context.data, lanes=None, drop_last=True, limit=None, skip=None, subset=None),
            optim=self.optim,
            train=TrainConfig(
                epochs=-(-self.iterations // max(1, epoch_len)),
                batch_size=self.batch_size,
                precision=self.precision,  # type: ignore[arg-type]
                clip_grad=self.clip_grad,
                checkpoint_every=self.checkpoint_every,
                log_every=Duration(1, "%"),
            ),
        )


def version_of(benchmark: Benchmark) -> str:
    """A digest of a benchmark's code, and of the files that its settings name: a training of others is not gone on
    with."""
    basis = [code_of(type(benchmark)), content_of(benchmark.config)]
    return hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()[:12]


def trained(
    course: Course, context: Context, device: torch.device, batches: Callable[[TrainPlan], BatchStream]
) -> Method:
    """Train as one of the ranks that are there, from the newest checkpoint of the same training on where there is one.

    Checkpoints lie in `context.folder`, below a name that settings, images, code, weights and seed make: those of
    another training are not taken for this one's. `forget` deletes them when all is measured.

    Args:
        course: what is trained and how.
        context: of the benchmark; its network is copied and stays as it is.
        device: where to train.
        batches: makes the batches of a plan.

    Returns:
        The trained method in evaluation mode, on the device.

    Raises:
        ConfigError: if the images do not fill a batch, or the network cannot be trained so.
        NonFiniteLoss: if the loss stops being finite.
    """
    network = context.network
    if not isinstance(network, Backbone):
        raise ConfigError(
            f"{type(network).__name__} is no backbone with maps of features; set rivals=[untrained] or []"
        )
    config = course.config(context)
    plan = TrainPlan.from_config(config, course.num_samples, dist.world(), device.type)
    plan = replace(plan, total_steps=course.iterations)
    data = DataInfo(course.num_samples, course.num_classes, config.data.image_size, course.fingerprint)
    setup = Setup(config, type(network).info(config.backbone), data, plan)
    prepare_device(config.train, device)
    torch.manual_seed(config.seed)
    method = course.method(setup, copy.deepcopy(network).to(device))
    place(method, config.train, device)
    state = TrainState(setup, method, build_optimizer(method, config.optim))
    keeper = Keeper(context.folder.child(_name(course, context, network)))
    restored = keeper.restore()
    if restored is not None:
        state.load(restored)
        log.info("%s goes on at step %d of %d", config.name, state.step, plan.total_steps)
    if state.step < plan.total_steps:
        fit(state, dist.data_parallel(method), plan, batches(plan), callbacks=[Told(config.name)], reporter=keeper)
    return method.eval()


class Told(Callback):
    """Says how a training goes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if dist.is_main():
            log.info("%s: update %d of %d, loss %.4g", self.name, step.index, step.total, line["loss"])


def forget(course: Course, context: Context) -> None:
    """Delete the checkpoints of a training whose numbers are known."""
    assert isinstance(context.network, Backbone)
    if dist.is_main():
        context.folder.remove_folder(_name(course, context, context.network))


def _name(course: Course, context: Context, network: Backbone) -> str:
    """Of the folder of a training: what would make it another one makes another name."""
    config = course.config(context)
    known = {key: value for key, value in plain(config).items() if key in ("seed", "method", "backbone", "optim")}
    known |= {"iterations": course.iterations, "batch": course.batch_size, "precision": course.precision}
    known |= {"version": course.version, "network": code_of(type(network))}
    known |= {"images": course.fingerprint, "normalisation": plain((config.data.mean, config.data.std))}
    digest = hashlib.sha256(repr(known).encode())
    for name, values in network.state_dict().items():
        digest.update(name.encode() + values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"training_{digest.hexdigest()[:12]}"
