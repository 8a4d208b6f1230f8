"""`raysl pretrain`."""

import typer

from raysl.cli.arguments import Arguments, LowResource, Verbose, load_run, set_up
from raysl.process.signals import handling_signals
from raysl.process.waiting import process_start, waiting


def run_pretrain(
    arguments: Arguments = None,
    low_resource: LowResource = False,
    verbose: Verbose = False,
) -> None:
    """Pre-train, measure and report. CONFIG defaults to quickstart: real images, no download.

    Ctrl-C or SIGTERM saves a checkpoint and stops, a second one ends at once; the same command continues the run. Exit
    code 0: done, 1: the run failed, 2: the input is wrong, 130: stopped by Ctrl-C, 143: stopped by SIGTERM.
    """
    set_up(verbose)
    with handling_signals(), waiting(process_start()) as waits:
        waits.enter("loading libraries")
        config = load_run(arguments, low_resource)
        from raysl.pretraining import pretrain

        pretrain(config)
    if low_resource:
        typer.echo("note        --low-resource shows that a run works; its numbers say little")
