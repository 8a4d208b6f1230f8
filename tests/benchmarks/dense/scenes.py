"""Generated pictures of coloured rectangles, in the layouts of real datasets, and what a benchmark is handed."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Context
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.setup import Setup
from raysl.storage.folder import Folder
from raysl.train.state import TrainState

COLORS = {0: (90, 90, 90), 1: (250, 20, 20), 2: (20, 250, 20), 3: (20, 20, 250)}
"""Of the background, and of some classes."""
RESNET = ("backbone.num_stages=2", "backbone.width=8", "backbone.depth=10")
VIT = ("backbone=vit", "backbone.width=24", "backbone.depth=2", "backbone.heads=2", "backbone.patch_size=4")


def scene(number: int, height: int = 32, width: int = 40) -> tuple[np.ndarray, np.ndarray, list[tuple[int, ...]]]:
    """Pixels uint8 [H, W, 3], classes uint8 [H, W], and (class, left, top, right, bottom) of each object, of which none
    hides another."""
    random = np.random.default_rng(number)
    classes = np.zeros((height, width), np.uint8)
    boxes = []
    for half in range(2):
        label = int(random.integers(1, len(COLORS)))
        left, top = int(random.integers(1, 6)) + half * width // 2, int(random.integers(1, height // 3))
        right, bottom = left + int(random.integers(8, 13)), top + int(random.integers(10, 19))
        classes[top:bottom, left:right] = label
        boxes.append((label, left, top, right, bottom))
    pixels = np.array([COLORS[label] for label in range(len(COLORS))], np.uint8)[classes]
    noise = random.integers(-8, 9, pixels.shape)
    return (pixels.astype(int) + noise).clip(0, 255).astype(np.uint8), classes, boxes


def jpeg(pixels: np.ndarray) -> bytes:
    """A JPEG file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95)
    return out.getvalue()


def palette_png(numbers: np.ndarray) -> bytes:
    """A PNG file of colours by their places in a palette, as VOC's masks are."""
    image = Image.fromarray(numbers, mode="P")
    image.putpalette([value for number in range(256) for value in (number * 37 % 256, number * 91 % 256, number)])
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def put(path: Path, content: bytes | str) -> None:
    """Write a file in a folder that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def network(*overrides: str) -> tuple[Any, Backbone]:
    """A run's settings and its untrained backbone."""
    config = load_config("quickstart", ["data.image_size=32", "train.threads=1", *(overrides or RESNET)])
    setup = Setup.of(config, 1000, 10)
    return config, TrainState.create(setup).exported().eval()


def context(folder: Path, *overrides: str, seed: int = 0) -> Context:
    """What a benchmark is handed of a checkpoint with random weights of a seed."""
    config, _ = network(*overrides)
    state = TrainState.create(Setup.of(replace(config, seed=seed), 1000, 10))
    uri = str(folder / "run" / checkpoint_name(0))
    if dist.is_main():
        state.save(Path(uri), {})
    dist.barrier()
    checkpoint = load_checkpoint(uri)
    return Context(
        side="trained",
        network=checkpoint.backbone,
        checkpoint=checkpoint,
        data=config.data,
        images={},
        train=None,
        test=None,
        num_classes=0,
        seed=0,
        folder=Folder(str(folder / "work")),
    )
