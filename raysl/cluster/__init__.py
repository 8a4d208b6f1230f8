"""A Ray cluster: connecting to one, and the shares of its users."""

import os
from typing import Any

if os.environ.get("RAYSL_PLAIN_RAY") == "1" and "RAY_ADDRESS" not in os.environ:
    # A private cluster listens on the loopback address, as everywhere but on Linux. Ray reads it when it is imported.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def __getattr__(name: str) -> Any:
    """Load `connect`, which notebooks take from here, when it is used: it imports Ray."""
    if name == "connect":
        from raysl.cluster.connection import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
