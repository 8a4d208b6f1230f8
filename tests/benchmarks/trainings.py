"""Checkpoints to probe, and runs in this process in place of those on Ray, for tests of benchmarks that train."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Context, Side
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import Stopped
from raysl.plan.setup import Setup
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.runs.run import TrainedRun
from raysl.storage.folder import Folder
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.logs import MetricsLog
from raysl.train.prepare import prepare
from raysl.train.state import TrainState, untrained_backbone
from tests.data.samples import png

NUM = 60
SHADES = {"dark": 0, "dim": 70, "light": 150, "bright": 230}
WORDS = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "train.batch_size=60",
    "train.threads=1",
    "train.online_knn_every=null",
    "benchmarks=[]",
)
DIGITS = ("method.hidden_dim=8", "method.output_dim=4", f"data.limit={NUM}")


def shades(folder: Path, num: int = 6) -> tuple[str, ...]:
    """Settings of images of four shades of red, so many of each in either split, which are their classes."""
    for split, (name, shade), number in product(("train", "val"), SHADES.items(), range(num)):
        place = folder / "shades" / split / name / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png(shade + number))
    return ("data=image_folder", f"data.path={folder}/shades", "data.image_size=16", *DIGITS[:2])


def checkpoint(
    folder: Path, *words: str, name: str = "quickstart", base: Sequence[str] = WORDS, is_blind: bool = False
) -> str:
    """A checkpoint at step 7 with the weights of another seed than its run's, or with zeros."""
    config = load_config(name, [*base, *words])
    state = TrainState.create(Setup.of(replace(config, seed=3), NUM, 10))
    if is_blind:
        for weight in state.method.export().parameters():
            weight.data.zero_()
    state.setup, state.step = replace(state.setup, config=config), 7
    state.save(folder / "run" / checkpoint_name(7), {})
    return str(folder / "run" / checkpoint_name(7))


def context_of(uri: str, folder: Path, side: Side = "trained") -> Context:
    """What the benchmark of a checkpoint is handed, on the images of its run."""
    loaded = load_checkpoint(uri)
    source = resolve("source", loaded.config.data.name)(loaded.config.data)
    images = {split: source.required(split) for split in ("train", "test")}
    network = loaded.backbone if side == "trained" else untrained_backbone(loaded)
    where = Folder(str(folder / "benchmarks" / side))
    num_classes = len(images["train"].classes)
    return Context(side, network, loaded, loaded.config.data, images, None, None, num_classes, 0, where)


def train_here(started: list[int], callbacks: Sequence[Callback] = ()) -> Callable[..., TrainedRun]:
    """`raysl.runs.run.train` without Ray, on the ranks that are there.

    Args:
        started: gets the step that each start begins at.
        callbacks: that observe as well.
    """

    def train(config: RunConfig, *_: Any) -> TrainedRun:
        run, folder = prepare(config), RunFolder.of(config)
        folder.make()
        if dist.is_main():
            begin(run, folder)
        dist.barrier()
        found = folder.newest()
        setup = replace(run.setup, plan=replace(run.setup.plan, world=dist.world()))
        state = TrainState.create(setup, classes=run.classes, is_new=found.name is None)
        if found.name is not None:
            state.load(Path(folder.path) / found.name)
        started.append(state.step)
        watching = [*run.callbacks, *callbacks, MetricsLog(Path(folder.path))]
        stream, reporter = LocalBatches(run.loader, dist.rank(), dist.world()), LocalReporter(folder.path)
        model = dist.data_parallel(state.method)
        fit(state, model, setup.plan, stream, callbacks=watching, reporter=reporter)
        if state.step < setup.plan.total_steps:
            raise Stopped("stopped")
        return TrainedRun.read(config, is_done=True)

    return train
