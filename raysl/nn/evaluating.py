"""A network in evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode while inside, and back in its mode at the end.

    >>> network = nn.Linear(2, 2)
    >>> with evaluating(network):
    ...     network.training
    False
    >>> network.training
    True
    """
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
