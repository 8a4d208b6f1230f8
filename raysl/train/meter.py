"""The speed of training, and the share of its time that it waits for data."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raysl import distributed as dist
from raysl.process.memory import most_resident

WARM_UP = 3  # first steps of a start compile, allocate and fill queues: they are not timed


class Meter:
    """Times the steps since the last reading by this process's clock; a GPU has to be synchronised before a reading."""

    def __init__(self, device: torch.device, warm_up: int = WARM_UP) -> None:
        self.device = device
        self.cold = warm_up
        self._restart()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside as waiting for data."""
        start = time.perf_counter()
        yield
        self.wait += time.perf_counter() - start

    def count(self, num_images: int) -> None:
        """Count a step over `num_images` images."""
        if self.cold:
            self.cold -= 1
            self._restart()
            return
        self.steps += 1
        self.images += num_images

    def read(self) -> dict[str, float]:
        """Return images a second over all ranks, seconds a step, share of waiting, memory in GB; then start anew.

        Over several ranks the seconds are the mean, share and memory the largest. Until a step after the warm-up is
        done, memory alone is returned. All ranks call it at the same steps.
        """
        if not self.steps:
            return {"memory_gb": self._most(most_used_gb(self.device))[0]}
        seconds = max(time.perf_counter() - self.start, 1e-9)
        wait, memory = self._most(self.wait / seconds, most_used_gb(self.device))
        mean = self._mean(seconds)
        numbers = {
            "images_per_s": self.images / mean,
            "step_s": mean / self.steps,
            "data_wait": wait,
            "memory_gb": memory,
        }
        self._restart()
        return numbers

    def _most(self, *values: float) -> list[float]:
        # a tensor that is made to be read at once would make the host wait for a GPU
        if dist.world() == 1:
            return list(values)
        most: list[float] = (-dist.all_least(-torch.tensor(values, dtype=torch.float64, device=self.device))).tolist()
        return most

    def _mean(self, value: float) -> float:
        if dist.world() == 1:
            return value
        return float(dist.all_mean(torch.tensor(value, dtype=torch.float64, device=self.device)))

    def _restart(self) -> None:
        self.start = time.perf_counter()
        self.wait = 0.0
        self.steps = 0
        self.images = 0


def most_used_gb(device: torch.device) -> float:
    """Return the peak memory so far in GB: of the GPU, or on a CPU of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device) / 1e9)
    return most_resident() / 1e9
