"""What a process read or made last, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyUsed(Generic[T]):
    """Values by their keys; the ones that were not used for longest go first, the newest always stays.

    Args:
        max_bytes: size of all values together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """The value of a key; where it is not kept, `make` gives it with its size in bytes."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        value, num_bytes = make()  # threads that miss at the same time both make it
        with self._lock:
            self.num_bytes += num_bytes - self._kept.get(key, (value, 0))[1]
            self._kept[key] = value, num_bytes
            while self.num_bytes > self.max_bytes and len(self._kept) > 1:
                _, (_, freed) = self._kept.popitem(last=False)
                self.num_bytes -= freed
        return value
