"""Whether this process was forked after Ray had started in its parent, whose connection does not work here."""

import os
import sys

_is_connected = False  # at the last fork, in the parent
has_dead_ray = False
"""Whether the connection to Ray, if there is one, is a copy of the parent's, which no thread serves."""


def watch_forks() -> None:
    """Note at each fork of this process whether it is connected to Ray then."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(before=_before, after_in_child=_after)


def _before() -> None:
    global _is_connected
    # it lacks the function while another thread imports it
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    _is_connected = is_initialized is not None and bool(is_initialized())


def _after() -> None:
    global has_dead_ray
    has_dead_ray = _is_connected
