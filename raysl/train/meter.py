"""How fast training goes, and how much of its time it waits for data."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Meter:
    """Times the steps since it was read last, by this process's clock; a GPU must be through with them by then."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._restart()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent inside counts as waiting for data."""
        start = time.perf_counter()
        yield
        self.wait += time.perf_counter() - start

    def count(self, num_images: int) -> None:
        """One step over so many images is done."""
        self.steps += 1
        self.images += num_images

    def read(self) -> dict[str, float]:
        """Images a second over all ranks, seconds a step, share of time that waited for data, memory. Starts anew."""
        seconds = max(time.perf_counter() - self.start, 1e-9)
        numbers = {
            "images_per_s": self.images / seconds,
            "step_s": seconds / max(1, self.steps),
            "data_wait": self.wait / seconds,
            "memory_gb": self._memory_gb(),
        }
        self._restart()
        return numbers

    def _restart(self) -> None:
        self.start = time.perf_counter()
        self.wait = 0.0
        self.steps = 0
        self.images = 0

    def _memory_gb(self) -> float:
        """Most memory used: of the GPU if there is one, else of this process."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device) / 1e9)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
