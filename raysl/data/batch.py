"""What a training step gets: the views of a batch of images, and who they are."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch.

    Args:
        views: float images by group of views, {"global": [B, V, C, H, W], ...}.
        index: int64 [B], the samples' stable places in the dataset.
        label: int64 [B], -1 where unlabelled.
        extras: what a method's recipe adds: rotation or permutation ids, masks.
    """

    views: dict[str, Tensor]
    index: Tensor
    label: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with `function` applied to each of its tensors."""
        return Batch(
            {name: function(view) for name, view in self.views.items()},
            function(self.index),
            function(self.label),
            {name: function(extra) for name, extra in self.extras.items()},
        )


@dataclass(frozen=True)
class DataInfo:
    """What a method may know of the dataset before it sees an image."""

    num_samples: int
    num_classes: int
    image_size: int
