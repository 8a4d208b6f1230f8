"""What is measured on the nodes: sums over nodes, and the way of images."""

import io
import time
from functools import cache
from typing import Any

import numpy as np

from raysl.errors import ConfigError

SUM_BYTES = 64 << 20
GRADIENT_BYTES = 102_228_128
"""Of ResNet-50: 25,557,032 weights of 4 bytes."""
SUM_S, IMAGES_S = 5.0, 5.0
JOIN_S = 20.0
ROWS = 64
"""Images of a data task."""


def sum_speed(address: str, rank: int, world: int, is_cuda: bool, join_s: float = JOIN_S) -> dict[str, Any]:
    """Sum tensors over nodes, as training does with gradients, for some five seconds; every node calls it.

    Args:
        address: host:port of the first node, where all meet within `join_s` seconds.
        is_cuda: whether to sum on this task's GPU by NCCL, instead of on the CPU by gloo.

    Returns:
        `nodes`, `backend`, `latency_ms` of one number, `seconds` of 64 MiB, and `gb_per_s`, what a node sends in the
        sum of a large tensor by a ring.
    """
    import torch

    from raysl import distributed as dist
    from raysl.distributed.ranks import joined

    device, backend = ("cuda", "nccl") if is_cuda else ("cpu", "gloo")
    with joined(address, rank, world, backend, join_s):

        def seconds(num: int, times: int) -> float:
            tensor = torch.zeros(num, device=device)
            start = time.perf_counter()
            for _ in range(times):
                dist.all_sum(tensor)
            if is_cuda:
                torch.cuda.synchronize()
            return (time.perf_counter() - start) / times

        # the first sums open connections, and are not measured
        seconds(1, 3)
        latency = seconds(1, 20)
        num = SUM_BYTES // 4
        first = torch.tensor(-seconds(num, 1), device=device)
        slowest = -float(dist.all_least(first[None])[0])  # all ranks have to repeat it equally often
        whole = seconds(num, max(1, min(50, int(SUM_S / slowest))))
    sent = 2 * (world - 1) / world * SUM_BYTES
    return {
        "nodes": world,
        "backend": backend,
        "latency_ms": round(latency * 1e3, 3),
        "seconds": round(whole, 4),
        "gb_per_s": round(sent / whole / 1e9, 3),
    }


def image_speed(cpus: float) -> dict[str, Any]:
    """Return `images_per_s` that tasks of Ray Data crop and send here in some five seconds, and their `cpus`."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    num_tasks = max(ROWS, int(20 * cpus))
    rows = ray.data.range(num_tasks * ROWS, override_num_blocks=num_tasks)
    images = rows.map_batches(_cut, batch_size=ROWS, num_cpus=min(1.0, cpus))
    start, num, rate = None, 0, None
    for batch in images.iter_batches(batch_size=None):
        now = time.perf_counter()
        if start is None:  # the first ones wait for processes to start
            start = now
            continue
        num += len(batch["image"])
        rate = num / (now - start)
        if now - start > IMAGES_S:
            break
    if rate is None:
        raise ConfigError("Ray Data made fewer than two batches")
    return {"images_per_s": round(rate, 1), "cpus": cpus}


def _cut(rows: dict[str, Any]) -> dict[str, Any]:
    from torchvision.transforms.v2 import functional

    from raysl.data.decode.decode import decode

    images = []
    for number in rows["id"]:
        pixels = decode(_photo())
        images.append(functional.resized_crop(pixels, int(number) % 100, 60, 250, 300, [224, 224], antialias=True))
    return {"image": np.stack([image.numpy() for image in images])}


@cache
def _photo() -> bytes:
    """Return a JPEG of 500x375, as ImageNet has them on average."""
    from PIL import Image

    height, width = np.mgrid[:375, :500]
    noise = np.random.default_rng(0).integers(0, 40, (375, 500, 3))
    pixels = np.stack([height / 2, width / 2.4, (height + width) / 4.5], axis=-1) + noise
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
