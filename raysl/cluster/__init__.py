"""A Ray cluster: connecting to one, and the shares of its users."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load `connect`, which notebooks take from here, when it is used: it imports Ray."""
    if name == "connect":
        from raysl.cluster.connection import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
