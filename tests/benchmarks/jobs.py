"""A job for tasks, in a module of its own: a worker has little to import."""

import numpy as np


def look_up(shared: np.ndarray, place: int) -> tuple[int, bool]:
    """A value of what is shared, and whether it could be written to."""
    return int(shared[place]), shared.flags.writeable
