"""`raysl pretrain`."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import typer

from raysl.cli.arguments import Arguments, LowResource, Verbose, load_run, set_up
from raysl.errors import RunFailed
from raysl.process.signals import handling_signals
from raysl.process.waiting import process_start, waiting

Loaded = TypeVar("Loaded")


def run_pretrain(arguments: Arguments = None, low_resource: LowResource = False, verbose: Verbose = False) -> None:
    """Pre-train, measure and report. CONFIG defaults to quickstart: real images, no download.

    Ctrl-C or SIGTERM saves a checkpoint and stops, a second one ends at once; the same command continues the run. Exit
    code 0: done, 1: the run failed, 2: the input is wrong, 130: stopped by Ctrl-C, 143: stopped by SIGTERM.
    """
    set_up(verbose)
    with handling_signals() as signals, waiting(process_start()) as waits:
        waits.enter("loading libraries")
        with signals.loading():
            config = _while_ray_starts(partial(load_run, arguments, low_resource))
            from raysl.pretraining import pretrain

        pretrain(config)
    if low_resource:
        typer.echo("note        --low-resource shows that a run works; its numbers say little")


def _while_ray_starts(load: Callable[[], Loaded]) -> Loaded:
    """Return what `load` returns, which another thread calls while this one starts a private cluster.

    `load` imports torch, which takes about as long. Where torch is there already nothing would be saved, and a cluster
    that RAY_ADDRESS names is left alone until the settings are known to be right. If they are wrong the start is given
    up.
    """
    if "torch" in sys.modules or "RAY_ADDRESS" in os.environ:
        return load()
    from raysl.cluster.connection import connect

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        with suppress(RunFailed):  # the run tries again, and says why it fails
            connect(is_needed=lambda: not loading.done() or loading.exception() is None)
        return loading.result()
