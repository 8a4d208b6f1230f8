"""`raysl speed`: how fast raysl is on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from raysl.cli.arguments import Verbose, set_up
from raysl.errors import ConfigError

app = typer.Typer(help="Measure how fast raysl is on this machine.", no_args_is_help=True)

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there too.", show_default=False)
]


@app.command("step")
def run_speed_step(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that a turn times.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Compare raysl's loop, alone and on Ray Train, with a bare torch loop on the same CPUs."""
    set_up(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.step import measure_step, step_table

    check_writable(json_file)
    numbers = measure_step(repeats=repeats, steps=steps)
    write(json_file, numbers)
    typer.echo(step_table(numbers))


@app.command("start")
def run_speed_start(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Starts.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Time from `raysl pretrain` to its first training step, and say where the seconds go."""
    set_up(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.start import measure_start, start_table

    check_writable(json_file)
    numbers = measure_start(repeats=repeats)
    write(json_file, numbers)
    typer.echo(start_table(numbers))


@app.command("recovery")
def run_speed_recovery(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that lose their worker, then their driver.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Time what a run loses when its training worker is killed, and when its driver is. Linux only."""
    set_up(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.recovery import measure_recovery, recovery_table

    check_writable(json_file)
    numbers = measure_recovery(repeats=repeats)
    write(json_file, numbers)
    typer.echo(recovery_table(numbers))


@app.command("pipeline")
def run_speed_pipeline(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that a turn measures.")] = 3.0,
    size: Annotated[int | None, typer.Option(help="Side of the views, 32 or 224; default: both.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each contender; default: one a CPU.")] = None,
    verbose: Verbose = False,
) -> None:
    """Compare the way from encoded images to views with torchvision's and lightly's, on the same CPUs."""
    set_up(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.pictures import STORED
    from raysl.speed.pipeline import measure_pipeline, pipeline_table

    if size is not None and size not in STORED:
        raise ConfigError(f"--size {size}: there are pictures for {' and '.join(map(str, STORED))}")
    check_writable(json_file)
    sizes = tuple(STORED) if size is None else (size,)
    numbers = measure_pipeline(sizes=sizes, repeats=repeats, seconds=seconds, threads=threads)
    write(json_file, numbers)
    typer.echo(pipeline_table(numbers))


@app.command("order")
def run_speed_order(
    json_file: JsonFile = None,
    rows: Annotated[int, typer.Option(min=1, help="Images of the simulated dataset.")] = 1_000_000_000,
    world: Annotated[int, typer.Option(min=1, help="Simulated workers.")] = 1024,
    verbose: Verbose = False,
) -> None:
    """Simulate the sample order of a large run: memory of a process, seconds to its first batch."""
    set_up(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.order import OrderTask, measure_order, order_table

    check_writable(json_file)
    task = OrderTask(rows=rows, world=world, lanes=world, batch_size=32 * world)
    if rows < task.batch_size:
        raise ConfigError(f"--rows {rows} do not fill a batch of {task.batch_size} (32 for each of {world} workers)")
    numbers = measure_order(task, ranks=sorted({0, world // 2, world - 1}))
    write(json_file, numbers)
    typer.echo(order_table(numbers))
