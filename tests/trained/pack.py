"""A run's checkpoint as a backbone that comes with raysl."""

import dataclasses
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.checkpoint_folder import BACKBONE_FILE, SETTINGS_FILE, seal
from raysl.components import resolve
from raysl.config.dump import dump, escape, leaves, plain, to_dict, write_inline
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.sources.photos import Photos
from raysl.errors import ConfigError
from raysl.report.contents import online_knn
from raysl.trained import FOLDER

PARTS = ("seed", "method", "backbone", "data", "optim", "train")
"""Settings that a command in a card may change."""


def pack(run: str, name: str, recipe: str, folder: Path = FOLDER) -> None:
    """Write what comes with raysl of a finished run, without optimizer, local paths and images.

    Args:
        run: its folder.
        name: of the backbone, `cifar10/simclr`; an earlier one is replaced.
        recipe: the packaged configuration that the run departs from.
        folder: of all backbones.

    Raises:
        ConfigError: if the run has not ended, was not measured, or the command in its card would not be its own.
    """
    checkpoint = load_checkpoint(run)
    if checkpoint.meta["metrics"]["epoch"] < checkpoint.config.train.epochs:
        raise ConfigError(f"{checkpoint.uri}: the run has not ended; pack it when it has")
    source = Path(checkpoint.uri)
    command = command_of(checkpoint.config, recipe, f"/path/to/{name.partition('/')[0]}")
    meta = {key: checkpoint.meta[key] for key in ("raysl", "method", "step", "epochs")}
    meta["data"] = {**checkpoint.meta["data"], "fingerprint": ""}
    meta["metrics"] = checkpoint.meta["metrics"] | _measured(source.parent)
    meta["trained"] = {"command": command, **_history(source.parent, checkpoint.config)}
    shutil.rmtree(folder / name, ignore_errors=True)
    target = folder / name / source.name
    target.mkdir(parents=True)
    shutil.copyfile(source / BACKBONE_FILE, target / BACKBONE_FILE)
    (target / SETTINGS_FILE).write_text(dump(without_places(checkpoint, name)))
    seal(target, meta)


def without_places(checkpoint: Checkpoint, name: str) -> RunConfig:
    """Return the settings of a run with the `photos` in the place of its images, as `raysl convert` has them.

    Raises:
        ConfigError: if another setting names a local path.
    """
    config = checkpoint.config
    of_images = {field.name: getattr(config.data, field.name) for field in dataclasses.fields(DataConfig)}
    data = Photos.Config(**{**of_images, "name": "photos"})
    settings = replace(config, name=name.replace("/", "_"), storage="runs", data=data)
    for keys, value in leaves(to_dict(settings)):
        if isinstance(value, str) and value.startswith(("/", "~")):
            raise ConfigError(f"{'.'.join(keys)}={value} is a local path; train without it")
    return settings


def command_of(config: RunConfig, recipe: str, images: str) -> str:
    """Return the command that trains with these settings, on images at a path.

    Raises:
        ConfigError: if no such command gives these settings.
    """
    ours, theirs = (dict(leaves(to_dict(one))) for one in (config, load_config(recipe, [f"data.path={images}"])))
    words = [
        f"{'.'.join(keys)}={write_inline(escape(value))}"
        for keys, value in ours.items()
        if keys[0] in PARTS and keys != ("data", "path") and value != theirs.get(keys)
    ]
    measures = {key: _departures(settings) for key, settings in config.benchmarks.items()}
    words.append(f"benchmarks={write_inline(measures)}")
    again = load_config(recipe, [f"data.path={images}", *words])
    data: Any = config.data
    others = replace(
        again, name=config.name, storage=config.storage, adapt=config.adapt, data=replace(again.data, path=data.path)
    )
    theirs = dict(leaves(to_dict(others)))
    if changed := [".".join(keys) for keys in ours | theirs if ours.get(keys) != theirs.get(keys)]:
        raise ConfigError(f"raysl pretrain {recipe} {' '.join(words)} gives other settings: {', '.join(changed)}")
    return shlex.join(["raysl", "pretrain", recipe, images, *words])


def _departures(settings: Any) -> dict[str, Any]:
    usual = plain(resolve("benchmark", settings.name).Config())
    return {key: value for key, value in plain(settings).items() if value != usual[key]}


def _measured(run: Path) -> dict[str, float]:
    """Return what the benchmarks measured, also of the untrained network and of pixels."""
    try:
        report = json.loads((run / "report.json").read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{run} has no report.json; measure it first, `raysl benchmark {run}`") from error
    metrics: dict[str, float] = report["metrics"]
    return metrics


def _history(run: Path, config: RunConfig) -> dict[str, Any]:
    """Return the epochs of the online kNN of the smallest k with its numbers, its settings in words, and the images a
    second, the median of all steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    knn: Any = config.benchmarks["knn"]
    name = online_knn(min(knn.k))
    curve = [[line["epoch"], line[name]] for line in lines if name in line]
    vote = f"k = {min(knn.k)} and temperature {knn.temperature:g}"
    return {
        "online_knn": curve,
        "vote": vote,
        "images_per_s": round(median(line["images_per_s"] for line in lines[1:])),
    }
