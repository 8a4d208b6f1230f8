"""NVIDIA DALI's pipeline on CPUs with SimCLR's two views, for `python -m perf pipeline`; extra `peers`.

An image is decoded once for its two views. Conditions have each operation work only on the images that it hits, with
SimCLR's probabilities. DALI changes colours in one fixed order, torchvision and raysl in a random one.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from raysl.transforms.photometric import blur_kernel_size


def is_installed() -> bool:
    """Return whether DALI can be imported."""
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def simclr_batches(
    images: Sequence[bytes], size: int, batch_size: int, threads: int, mean: Sequence[float], std: Sequence[float]
) -> Iterator[Any]:
    """Yield batches without end, normalised float32 [B, 2, 3, size, size] of encoded images."""
    from nvidia.dali import fn, pipeline_def, types

    files = [np.frombuffer(image, np.uint8) for image in images]

    def batch(step: int) -> list[Any]:
        first = step * batch_size
        return [files[(first + row) % len(files)] for row in range(batch_size)]

    def factor() -> Any:
        return fn.random.uniform(range=(0.2, 1.8))

    @pipeline_def(batch_size=batch_size, num_threads=threads, device_id=None, enable_conditionals=True, seed=0)
    def simclr() -> Any:
        decoded = fn.decoders.image(fn.external_source(source=batch, cycle=None), device="cpu")
        views = []
        for _ in range(2):
            view = fn.random_resized_crop(
                decoded, size=(size, size), random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3), antialias=True
            )
            if fn.random.coin_flip(probability=0.8, dtype=types.BOOL):
                turn = fn.random.uniform(range=(-72.0, 72.0))  # degrees: 0.2 of a circle
                view = fn.color_twist(view, brightness=factor(), contrast=factor(), saturation=factor(), hue=turn)
            if fn.random.coin_flip(probability=0.2, dtype=types.BOOL):
                view = fn.hsv(view, saturation=0.0)
            if fn.random.coin_flip(probability=0.5, dtype=types.BOOL):
                view = fn.gaussian_blur(
                    view, sigma=fn.random.uniform(range=(0.1, 2.0)), window_size=blur_kernel_size(size)
                )
            view = fn.crop_mirror_normalize(
                view,
                mirror=fn.random.coin_flip(probability=0.5),
                mean=[255 * value for value in mean],
                std=[255 * value for value in std],
                output_layout="CHW",
            )
            views.append(view)
        return tuple(views)

    pipeline = simclr()
    pipeline.build()
    while True:
        yield torch.stack([torch.from_numpy(np.array(views.as_tensor())) for views in pipeline.run()], dim=1)
