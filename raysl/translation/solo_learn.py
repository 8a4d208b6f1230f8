"""solo-learn's configurations as settings of raysl. Facts are of solo-learn at commit 9187ea3."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysl.errors import ConfigError
from raysl.translation.solo_methods import METHODS
from raysl.translation.solo_views import translate_views
from raysl.translation.theirs import Theirs, checked, location, numbers
from raysl.translation.translated import Translation

DEFAULTS: dict[str, Any] = {
    "seed": 5,
    "num_nodes": 1,
    "devices": 1,
    "sync_batchnorm": False,
    "precision": 32,
    "optimizer.weight_decay": 0.0,
    "optimizer.kwargs.momentum": 0.9,
    "optimizer.kwargs.eta": 0.001,
    "optimizer.kwargs.clip_lr": False,
    "optimizer.kwargs.exclude_bias_n_norm": False,
    "optimizer.kwargs.betas": [0.9, 0.999],
    "optimizer.exclude_bias_n_norm_wd": False,
    "scheduler.name": "warmup_cosine",
    "scheduler.interval": "step",
    "scheduler.min_lr": 0.0,
    "scheduler.warmup_epochs": 10,
    "scheduler.warmup_start_lr": 3e-5,
    "checkpoint.frequency": 1,
}
"""Values of keys that a file may leave out."""
DATASETS = {
    "cifar10": ("CIFAR10", [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]),
    "cifar100": ("CIFAR100", [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "stl10": ("STL10", [0.4914, 0.4823, 0.4466], [0.247, 0.243, 0.261]),
}
"""Datasets of torchvision, with the means and deviations that solo-learn normalises them by."""
UNUSED = (
    "defaults hydra wandb_cfg augmentations_cfg auto_resume auto_umap debug_augmentations accelerator strategy "
    "data.num_workers data.no_labels data.format checkpoint.enabled checkpoint.keep_prev resume_from_checkpoint"
)


def translate(tree: Mapping[str, Any], name: str, chosen: Mapping[str, Any]) -> Translation:
    """Translate a configuration of solo-learn.

    Args:
        tree: its settings, with the `augmentations`.
        name: of the run, unless the file has one.
        chosen: raysl's settings that the user gives beside it, by dotted key.

    Raises:
        ConfigError: if it is no such configuration, or one of a method that has no counterpart.
    """
    theirs = Theirs(tree, DEFAULTS)
    out = Translation("solo-learn", theirs, name)
    out.settings |= chosen
    method = theirs.text("method")
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is none of {', '.join(METHODS)}; take raysl's own: raysl list configs")
    METHODS[method](out)
    out.drops("name")
    _backbone(out)
    _data(out)
    translate_views(out)
    batch = _batch(out)
    _optimizer(out, batch)
    _schedule(out, batch)
    _run(out)
    out.choose(chosen)
    out.finish()
    return out


def augmentations_file(tree: Mapping[str, Any], path: str) -> Path | None:
    """Return the file beside a configuration that its `defaults` name as its augmentations."""
    entries = tree.get("defaults")
    for entry in entries if isinstance(entries, list) else []:
        name = entry.get("augmentations") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name == Path(name).name:
            file = Path(path).parent / "augmentations" / name
            return file if file.suffix else file.with_suffix(".yaml")
    return None


def _backbone(out: Translation) -> None:
    theirs, key = out.theirs, "backbone.name"
    name = theirs.text(key)
    if "backbone.name" in out.settings:
        out.drops("backbone", "another backbone is given")
    elif name.startswith("resnet") and name[6:].isdigit():
        is_small = theirs.text("data.dataset") in ("cifar10", "cifar100")
        note = "the small stem pads by 1 pixel; solo-learn's by 2" if is_small else ""
        settings = {"backbone.name": "resnet", "backbone.depth": int(name[6:])}
        out.maps(key, {**settings, "backbone.stem": "cifar" if is_small else "imagenet"}, note)
    elif name in ("vit_tiny", "vit_small", "vit_base", "vit_large"):
        out.maps(key, {"backbone.name": "vit", "backbone.size": name[4:]})
        if theirs.given("backbone.kwargs.patch_size"):
            out.same("backbone.kwargs.patch_size", backbone__patch_size=theirs.whole("backbone.kwargs.patch_size"))
    else:
        raise ConfigError(
            f"{key}: no counterpart of {name!r} by itself; add backbone=NAME and its settings, such as "
            "backbone=torchvision backbone.model=swin_t, to the command"
        )


def _data(out: Translation) -> None:
    theirs, dataset = out.theirs, out.theirs.text("data.dataset")
    train, test = (location(theirs.text(f"data.{key}")) for key in ("train_path", "val_path"))
    if dataset in DATASETS:
        name, mean, std = DATASETS[dataset]
        settings = {"data.name": "torchvision", "data.dataset": name, "data.mean": mean, "data.std": std}
        out.maps("data.dataset", settings)
        out.maps("data.train_path", {"data.root": train} if train else {}, "" if train else "give data.root=FOLDER")
        out.drops("data.val_path")
    else:
        out.maps("data.dataset", {"data.name": "image_folder"})
        for key, found, field in (("train_path", train, "train"), ("val_path", test, "test")):
            if found is not None:
                out.maps(f"data.{key}", {f"data.{field}": found})
    if theirs.given("data.fraction"):
        out.lacks("data.fraction", "give data.limit, a number of images, with data.balanced=true")


def _batch(out: Translation) -> int:
    theirs, devices = out.theirs, out.theirs.any("devices")
    count = len(devices) if isinstance(devices, list) else checked(devices, (int,), "devices", "a number or a list")
    workers = max(1, count) * theirs.whole("num_nodes")
    size = theirs.whole("optimizer.batch_size") * workers
    note = f"of each of {workers} devices, of all together here" if workers > 1 else ""
    out.same("optimizer.batch_size", note, train__batch_size=size)
    out.same("devices", train__workers=workers)
    if theirs.given("num_nodes"):
        out.same("num_nodes", train__workers=workers)
    if theirs.any("accumulate_grad_batches") not in (None, 1):
        out.lacks("accumulate_grad_batches", "train.accumulate divides a batch into parts; here batches are added up")
    return size


def _optimizer(out: Translation, batch: int) -> None:
    theirs, name = out.theirs, out.theirs.text("optimizer.name")
    kwargs = "optimizer.kwargs"
    known = {"sgd": "sgd", "lars": "larc", "adam": "adam", "adamw": "adamw"}
    if name not in known:
        raise ConfigError(f"optimizer.name: {name!r} is none of {', '.join(known)}; add optim=NAME to the command")
    note = "its rate is that of NVIDIA's LARC, by the norms of weights and gradient apart" if name == "lars" else ""
    out.maps("optimizer.name", {"optim.name": known[name]}, note)
    out.maps("optimizer.lr", {"optim.lr": theirs.number("optimizer.lr"), "optim.lr_scaling": "linear"})
    out.settings["optim.lr_batch_size"] = 256
    out.same("optimizer.weight_decay", optim__weight_decay=theirs.number("optimizer.weight_decay"))
    if name in ("sgd", "lars"):
        out.same(f"{kwargs}.momentum", optim__momentum=theirs.number(f"{kwargs}.momentum"))
    else:
        out.maps(f"{kwargs}.betas", {"optim.betas": theirs.items(f"{kwargs}.betas")})
    is_excluded = theirs.flag("optimizer.exclude_bias_n_norm_wd")
    if name == "lars":
        out.same(f"{kwargs}.eta", optim__trust_coefficient=theirs.number(f"{kwargs}.eta"))
        out.same(f"{kwargs}.clip_lr", optim__clip=theirs.flag(f"{kwargs}.clip_lr"))
        is_unscaled = theirs.flag(f"{kwargs}.exclude_bias_n_norm")
        out.same(f"{kwargs}.exclude_bias_n_norm", optim__exclude_norm_and_bias=is_unscaled or is_excluded)
        if theirs.given("optimizer.exclude_bias_n_norm_wd"):
            out.same("optimizer.exclude_bias_n_norm_wd", optim__exclude_norm_and_bias=is_unscaled or is_excluded)
    else:
        out.same("optimizer.exclude_bias_n_norm_wd", optim__exclude_norm_and_bias=is_excluded)
    note = "train.online_probe=1ep trains one along, by Adam; train.online_probe_lr is its rate"
    if theirs.given("optimizer.classifier_lr"):
        out.lacks("optimizer.classifier_lr", note)


def _schedule(out: Translation, batch: int) -> None:
    theirs, name = out.theirs, out.theirs.text("scheduler.name")
    peak = theirs.number("optimizer.lr") * batch / 256
    final = round(theirs.number("scheduler.min_lr") / peak, 10) if peak else 0.0
    warm = theirs.number("scheduler.warmup_epochs")
    if name == "warmup_cosine":
        out.maps("scheduler.name", {"optim.schedule": "cosine"})
        out.maps("scheduler.warmup_epochs", {"optim.warmup": f"{warm:g}ep"})
        start = round(theirs.number("scheduler.warmup_start_lr") / peak, 10) if peak else 0.0
        out.maps("scheduler.warmup_start_lr", {"optim.warmup_start": start}, "a share of the peak here")
        out.maps("scheduler.min_lr", {"optim.final_lr": final}, "a share of the peak here" if final else "")
    elif name == "cosine":
        out.maps("scheduler.name", {"optim.schedule": "cosine", "optim.warmup": "0ep", "optim.final_lr": final})
    elif name == "step":
        points = [
            f"{point:g}ep" for point in numbers(theirs.any("scheduler.lr_decay_steps"), "scheduler.lr_decay_steps")
        ]
        out.maps("scheduler.name", {"optim.schedule": "steps", "optim.warmup": "0ep"})
        out.maps("scheduler.lr_decay_steps", {"optim.decay_at": points, "optim.decay_factor": 0.1})
    elif name == "none":
        out.maps("scheduler.name", {"optim.schedule": "constant", "optim.warmup": "0ep"})
    else:
        raise ConfigError(f"scheduler.name: no counterpart of {name!r}; add optim.schedule=NAME to the command")
    if theirs.text("scheduler.interval") == "epoch":
        out.same("scheduler.interval", optim__update_every="epoch")
    elif theirs.given("scheduler.interval"):
        out.same("scheduler.interval", optim__update_every="step")


def _run(out: Translation) -> None:
    theirs = out.theirs
    out.same("max_epochs", train__epochs=theirs.whole("max_epochs"))
    out.same("sync_batchnorm", train__sync_bn=theirs.flag("sync_batchnorm"))
    precision = str(theirs.any("precision"))
    kind = "bf16" if precision.startswith("bf16") else "fp16" if precision.startswith("16") else "fp32"
    note = "train.precision=auto is bf16 on GPUs, which needs no scaling of the loss" if kind == "fp16" else ""
    out.same("precision", note, train__precision=kind)
    out.same("seed", seed=theirs.whole("seed"))
    every = f"{max(1, theirs.whole('checkpoint.frequency'))}ep"
    out.same("checkpoint.frequency", train__checkpoint_every=every)
    folder = location(theirs.text("checkpoint.dir"))
    if folder is not None:
        out.same("checkpoint.dir", "a run lies in a folder of its name below it", storage=folder)
    _tracking(out)
    out.drops(UNUSED)


def _tracking(out: Translation) -> None:
    """Name the callback for a file that asks for Weights & Biases; a run is sent nowhere unasked."""
    theirs = out.theirs
    if theirs.any("wandb.enabled") is not True:
        out.drops("wandb")
        return
    words = ["callbacks=[wandb]"]
    words += [
        f"callbacks.wandb.{key}={theirs.text(f'wandb.{key}')}"
        for key in ("project", "entity")
        if theirs.given(f"wandb.{key}")
    ]
    words += ["callbacks.wandb.mode=offline"] if theirs.any("wandb.offline") is True else []
    out.maps("wandb", {}, f"add {shlex.join(words)} to `raysl pretrain`, with the client of the extra `wandb`")
