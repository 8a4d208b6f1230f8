"""`python -m perf`: how fast raysl is on this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from perf.harness import Numbers, check_writable
from raysl.cli.arguments import Verbose, set_up

app = typer.Typer(help="Measure how fast raysl is on this machine.", no_args_is_help=True)

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there too.", show_default=False)
]
Beside = Annotated[
    Path | None, typer.Option(metavar="CHECKOUT", help="Another version of raysl, to see what has become slower.")
]
Turns = Annotated[int, typer.Option(min=1, help="Turns of each contender.")]
CoreCases = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A case such as dino/parquet; again for more.")
]
LossCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as nt_xent; again for more.")]
BenchmarkCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as knn; again for more.")]
SweepCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as overhead; again for more.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each contender; default: one a CPU.")]


@app.command("step")
def run_step(
    json_file: JsonFile = None,
    repeats: Turns = 5,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that a turn times.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Compare raysl's loop, alone and on Ray Train, with a bare torch loop on the same CPUs."""
    from perf.step import measure_step, step_table

    _report(json_file, verbose, step_table, measure_step, repeats=repeats, steps=steps)


@app.command("options")
def run_options(
    json_file: JsonFile = None,
    model: Annotated[str, typer.Option(help="resnet50 (SimCLR) or vit_s (DINO with crops).")] = "resnet50",
    only: Annotated[
        list[str] | None, typer.Option(help="A combination such as 'bf16 compile plain'; again for more.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each combination.")] = 3,
    batch_size: Annotated[int, typer.Option(min=4, help="Images in a step.")] = 8,
    threads: Threads = None,
    verbose: Verbose = False,
) -> None:
    """Compare steps in fp32 and bf16, channels last, compiled, recomputed and accumulated with plain ones."""
    from perf.options import measure_options, options_table

    options = {"model": model, "names": only, "repeats": repeats, "batch_size": batch_size, "threads": threads}
    _report(json_file, verbose, options_table, measure_options, **options)


@app.command("start")
def run_start(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Starts of each contender.")] = 3,
    beside: Beside = None,
    verbose: Verbose = False,
) -> None:
    """Time from `raysl pretrain` to its first training step, say where the seconds go, and compare with Ray Train."""
    from perf.start import measure_start, start_table

    _report(json_file, verbose, start_table, measure_start, repeats=repeats, beside=beside)


@app.command("recovery")
def run_recovery(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that lose their worker, then their driver.")] = 3,
    beside: Beside = None,
    verbose: Verbose = False,
) -> None:
    """Time what a run loses when its training worker is killed, and when its driver is. Linux only."""
    from perf.recovery import measure_recovery, recovery_table

    _report(json_file, verbose, recovery_table, measure_recovery, repeats=repeats, beside=beside)


@app.command("pipeline")
def run_pipeline(
    json_file: JsonFile = None,
    repeats: Turns = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that a turn measures.")] = 3.0,
    size: Annotated[int | None, typer.Option(help="Side of the views, 32 or 224; default: both.")] = None,
    threads: Threads = None,
    only: Annotated[str | None, typer.Option(metavar="LETTERS", help="Contenders, such as df; default: all.")] = None,
    beside: Beside = None,
    verbose: Verbose = False,
) -> None:
    """Compare the way from encoded images to views with torchvision's and lightly's, on the same CPUs."""
    from perf.pipeline import contender_names, measure_pipeline, pipeline_table

    options: Numbers = {"names": contender_names(only), "repeats": repeats, "seconds": seconds, "threads": threads}
    options |= {"beside": beside} | ({} if size is None else {"sizes": (size,)})
    _report(json_file, verbose, pipeline_table, measure_pipeline, **options)


@app.command("cores")
def run_cores(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each case.")] = 5,
    batches: Annotated[int, typer.Option(min=1, help="Batches that a turn times.")] = 2,
    only: CoreCases = None,
    verbose: Verbose = False,
) -> None:
    """Count the images a second that one CPU core makes for SimCLR and DINO, from each kind of storage."""
    from perf.cores import cores_table, measure_cores

    _report(json_file, verbose, cores_table, measure_cores, names=only or (), repeats=repeats, batches=batches)


@app.command("loss")
def run_loss(
    json_file: JsonFile = None,
    repeats: Turns = 5,
    only: LossCases = None,
    memory: Annotated[bool, typer.Option(help="Measure memory too, in processes of their own.")] = True,
    verbose: Verbose = False,
) -> None:
    """Compare the losses, Sinkhorn-Knopp, k-means and a teacher's update with lightly's, faiss and plain forms."""
    from perf.loss import loss_table, measure_loss

    _report(json_file, verbose, loss_table, measure_loss, names=only or (), repeats=repeats, with_memory=memory)


@app.command("benchmark")
def run_benchmark(
    json_file: JsonFile = None,
    repeats: Turns = 3,
    only: BenchmarkCases = None,
    quick: Annotated[bool, typer.Option("--quick", help="About a tenth of everything.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A size such as keys=100000; again for more.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Compare kNN, linear probes, SVMs and extraction with scikit-learn, faiss and plain forms; memory beside."""
    from perf.benchmark import benchmark_table, measure_benchmark
    from perf.sizes import QUICK, Sizes, with_changes

    sizes = with_changes(QUICK if quick else Sizes(), size or [])
    _report(json_file, verbose, benchmark_table, measure_benchmark, names=only or (), repeats=repeats, sizes=sizes)


@app.command("order")
def run_order(
    json_file: JsonFile = None,
    rows: Annotated[int, typer.Option(min=1, help="Images of the simulated dataset.")] = 1_000_000_000,
    world: Annotated[int, typer.Option(min=1, help="Simulated workers.")] = 1024,
    verbose: Verbose = False,
) -> None:
    """Simulate the sample order of a large run: memory, seconds to its first batch; count reads of ImageNet's shape."""
    from perf.order import measure_order_and_reads, order_and_reads_table

    _report(json_file, verbose, order_and_reads_table, measure_order_and_reads, rows=rows, world=world)


@app.command("scale")
def run_scale(
    json_file: JsonFile = None,
    world: Annotated[
        list[int] | None, typer.Option(min=1, help="GPUs of a run; may be given several times. Default: 8 to 1,024.")
    ] = None,
    images_s: Annotated[float, typer.Option(min=1, help="Images that a GPU takes in a second.")] = 2000.0,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks that the rank takes.")] = 2000,
    verbose: Verbose = False,
) -> None:
    """Count the data of large runs through, and measure the stream of a rank."""
    from perf.scale import WORLDS, ScaleTask, measure_scale, scale_table

    task = ScaleTask(images_s=images_s, blocks=blocks)
    _report(json_file, verbose, scale_table, measure_scale, task=task, worlds=world or WORLDS)


@app.command("memory")
def run_memory(
    json_file: JsonFile = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the run.")] = 20,
    epoch_steps: Annotated[int, typer.Option(min=1, help="Training steps of each.")] = 500,
    workers: Annotated[int, typer.Option(min=1, help="Training workers.")] = 1,
    verbose: Verbose = False,
) -> None:
    """Watch the memory of all processes of a long run, to see whether it grows. Linux only."""
    from perf.memory import MemoryTask, growth_table, measure_growth

    task = MemoryTask(epochs=epochs, epoch_steps=epoch_steps, workers=workers)
    _report(json_file, verbose, growth_table, measure_growth, task=task)


@app.command("sweep")
def run_sweep(
    json_file: JsonFile = None,
    repeats: Turns = 3,
    only: SweepCases = None,
    trials: Annotated[int, typer.Option(min=2, help="Trials of a sweep that is compared with bare runs.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Trials of a few steps alone.")] = False,
    verbose: Verbose = False,
) -> None:
    """Compare trials with bare runs, count trials an hour, and time the start of a sweep of a thousand."""
    from perf.sweep import SweepSizes, measure_sweep, sweep_table

    sizes = SweepSizes.of_machine(trials, is_quick=quick)
    _report(json_file, verbose, sweep_table, measure_sweep, names=only or (), repeats=repeats, sizes=sizes)


@app.command("peers")
def run_peers(
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="CIFAR-10 as Parquet files.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A result of each run; those that are there stay.")],
    json_file: JsonFile = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="METHOD", help="Such as simclr; may be given several times.")
    ] = None,
    library: Annotated[
        list[str] | None, typer.Option(metavar="LIBRARY", help="Such as lightly; may be given several times.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method in each library.")] = 2,
    images: Annotated[int, typer.Option(min=256, help="Training images.")] = 10_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over them.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    verbose: Verbose = False,
) -> None:
    """Compare what raysl, lightly and stable-pretraining learn from the same images with the same budget."""
    from perf.peers.measure import measure_peers, peers_table

    options = {"data": data, "folder": out, "methods": only or (), "libraries": library or (), "seeds": seeds}
    options |= {"images": images, "epochs": epochs, "threads": threads, "jobs": jobs}
    _report(json_file, verbose, peers_table, measure_peers, **options)


def _report(
    json_file: Path | None,
    verbose: bool,
    table: Callable[[Numbers], str],
    measure: Callable[..., Numbers],
    **options: Any,
) -> None:
    """Measure, once it is known that the numbers can be written; write and show them."""
    set_up(verbose)
    check_writable(json_file)
    numbers = measure(**options)
    if json_file is not None:
        json_file.write_text(json.dumps(numbers, indent=1) + "\n")
    typer.echo(table(numbers))
