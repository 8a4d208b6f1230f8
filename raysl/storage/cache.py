"""A cache of recently used values, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyUsed(Generic[T]):
    """Values by key. Those unused for longest are dropped first; the newest always stays.

    Args:
        max_bytes: size of all values together.

    >>> cache = RecentlyUsed(max_bytes=10)
    >>> cache.get("a", lambda: ("value", 5)), cache.get("a", lambda: ("other", 5))
    ('value', 'value')
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._lock = Lock()
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]], is_kept: bool = True) -> T:
        """Return the value of a key.

        Args:
            make: returns the value with its size in bytes; called if it is not cached.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        # made outside of the lock, so that a slow value does not block other keys
        value, num_bytes = make()  # threads that miss at the same time both make it
        if not is_kept:
            return value
        with self._lock:
            # another thread may have stored this key meanwhile: its bytes are replaced, not added
            self.num_bytes += num_bytes - self._values.get(key, (value, 0))[1]
            self._values[key] = value, num_bytes
            while self.num_bytes > self.max_bytes and len(self._values) > 1:
                _, (_, freed) = self._values.popitem(last=False)
                self.num_bytes -= freed
        return value
