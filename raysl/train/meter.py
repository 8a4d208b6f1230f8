"""How fast training goes, and how much of its time it waits for data."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raysl import distributed as dist
from raysl.process.memory import most_resident

WARM_UP = 3  # first steps of a start, which compile, allocate and fill queues: they are not timed


class Meter:
    """Times the steps since it was read last, by this process's clock; a GPU must be through with them by then.

    Args:
        device: of the training.
        warm_up: first steps that are left out.
    """

    def __init__(self, device: torch.device, warm_up: int = WARM_UP) -> None:
        self.device = device
        self.cold = warm_up
        self._restart()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent inside counts as waiting for data."""
        start = time.perf_counter()
        yield
        self.wait += time.perf_counter() - start

    def count(self, num_images: int) -> None:
        """One step over so many images is done."""
        if self.cold:
            self.cold -= 1
            self._restart()
            return
        self.steps += 1
        self.images += num_images

    def read(self) -> dict[str, float]:
        """Images a second over all ranks, seconds a step, share of time that waited for data, memory. Starts anew.

        Of several ranks the seconds are the mean, share and memory those of the rank with the most. While no step but
        those of the warm-up is done there is the memory alone. All ranks call it at the same steps.
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
        """The greatest of each over ranks."""
        if dist.world() == 1:
            return list(values)
        most: list[float] = (-dist.all_least(-torch.tensor(values, dtype=torch.float64, device=self.device))).tolist()
        return most

    def _mean(self, value: float) -> float:
        """Over ranks."""
        if dist.world() == 1:
            return value
        return float(dist.all_mean(torch.tensor(value, dtype=torch.float64, device=self.device)))

    def _restart(self) -> None:
        self.start = time.perf_counter()
        self.wait = 0.0
        self.steps = 0
        self.images = 0


def most_used_gb(device: torch.device) -> float:
    """Most memory used so far: of the GPU if it is one, else of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device) / 1e9)
    return most_resident() / 1e9
