"""Bytes of a pretended GPU's memory: what lives, and the most that lived at once."""

from typing import Any
from weakref import finalize

from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.fake_gpu.watch import is_on_gpu


class Memory:
    """An observer of a watch that counts each memory once, however many tensors share it, until the last has gone."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.at = ""
        self._known: set[int] = set()

    def restart(self) -> None:
        """Count the peak from now on."""
        self.peak = self.live

    def __call__(self, name: str, given: Any, result: Any, phase: str) -> None:
        """See `Watch.observers`."""
        for values in tree_leaves(result):
            if is_on_gpu(values):
                self._add(values, name)

    def _add(self, values: Tensor, name: str) -> None:
        storage = values.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        finalize(storage, self._remove, key, size)
        self.live += size
        if self.live > self.peak:
            self.peak, self.at = self.live, name

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
