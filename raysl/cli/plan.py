"""`raysl plan`."""

import typer

from raysl.cli.arguments import Arguments, LowResource, Verbose, load_run, set_up


def run_plan(arguments: Arguments = None, low_resource: LowResource = False, verbose: Verbose = False) -> None:
    """Print what a new run would do: batches, steps, reads, how well it shuffles, memory. Nothing is started.

    Exit code 0: the run can start, 2: the input is wrong.
    """
    set_up(verbose)
    config = load_run(arguments, low_resource)
    from raysl.plan.reads import Reads
    from raysl.runs.prepare import prepare

    run = prepare(config)
    plan, loader = run.setup.plan, run.loader
    rows = str(plan.rows[0]) if len(set(plan.rows)) == 1 else f"{min(plan.rows)} to {max(plan.rows)}"
    typer.echo(f"images      {run.setup.data.num_samples:,} to train on")
    typer.echo(f"batch       {plan.batch_size:,} images: {rows} on each of {plan.world} worker(s), {plan.lanes} lanes")
    typer.echo(f"training    {plan.total_steps:,} steps, {plan.epoch_len:,} in an epoch")
    for number, line in enumerate(Reads.of(loader.order).lines(loader.row_bytes)):
        typer.echo(f"{'' if number else 'reads':<12}{line}")
