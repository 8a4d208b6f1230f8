"""`python -m perf options`: effect of precision, memory format, compiling, recomputing and accumulating on a step.

Each combination is a process of its own, beside one with none of them. Both train on the same batches, made beforehand,
and take turns. Speed is a ratio to the plain one, memory is that of the process, or on a GPU what tensors had at most.
A name that ends in `piped` has its images read, decoded and augmented by threads of the process as it trains.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice, product

import torch
from torch.utils.flop_counter import FlopCounterMode

from perf.harness import Numbers, each_ratio, interleaved, log, machine, medians, scratch_folder
from perf.pictures import write_pictures
from perf.processes import Child, Gate, Lineup, join
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.shared.device import prepare_device
from raysl.process.memory import keep_freed_memory
from raysl.report.summary import aligned
from raysl.train.loop import fit
from raysl.train.prepare import Prepared, prepare
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState

MODELS = {
    "resnet50": ("simclr", ("backbone.depth=50",)),
    "vit_s": ("dino", ("backbone.size=small",)),
}
"""Configuration and settings: SimCLR on two views of 224 px, DINO on two of 224 and eight of 96."""
PRECISION: dict[str, tuple[str, ...]] = {"fp32": ("train.precision=fp32",), "bf16": ("train.precision=bf16",)}
KERNELS: dict[str, tuple[str, ...]] = {
    "default": (),
    "channels_last": ("train.channels_last=true",),
    "compile": ("train.compile=true",),
}
MEMORY: dict[str, tuple[str, ...]] = {
    "plain": (),
    "recomputed": ("train.recompute=all",),
    "accumulated": ("train.accumulate=2",),
}
TABLES = (PRECISION, KERNELS, MEMORY)
PLAIN = "fp32 default plain"
PIPED = "piped"
NUM_BATCHES = 2
NUM_PICTURES = 256
READ_AHEAD = 2  # threads of a piped process beside those of torch
SIDE = 2048  # of the square matrices whose product gives the machine's rate


def option_names() -> list[str]:
    """Return all combinations, the plain one first, and those without any of memory's options through the pipeline."""
    return [" ".join(names) for names in product(*TABLES)] + [f"{name} default plain {PIPED}" for name in PRECISION]


def settings_of(name: str) -> tuple[str, ...]:
    """Return the settings of a combination."""
    parts = name.removesuffix(f" {PIPED}").split()
    if len(parts) != 3 or any(part not in table for part, table in zip(parts, TABLES, strict=True)):
        raise ConfigError(f"no options {name!r}; write one of {', '.join(option_names())}")
    return tuple(setting for part, table in zip(parts, TABLES, strict=True) for setting in table[part])


def measure(
    model: str,
    names: Sequence[str] | None = None,
    *,
    repeats: int = 3,
    steps: int = 1,
    batch_size: int = 8,
    threads: int | None = None,
    settings: Sequence[str] = (),
) -> Numbers:
    """Measure speed and memory of a step with each combination of options, and without.

    Returns:
        `options`, by name: `images_per_s`, `ratio` to the plain one of the same turns (medians), `memory_gb`; `plain`:
        `flops` of a step and `share` of the rate of matrix products in its precision; `environment`.
    """
    if model not in MODELS:
        raise ConfigError(f"no model {model!r}; choose from {', '.join(MODELS)}")
    threads = threads or os.cpu_count() or 1
    chosen = list(names or option_names())
    for name in chosen:
        settings_of(name)  # refuses an unknown name before anything starts
    options: dict[str, dict[str, float]] = {}
    plain_speed = 0.0
    with scratch_folder() as folder, Lineup(folder) as lineup:
        write_pictures(folder / "train-0.parquet", 224, NUM_PICTURES)
        memory_gb: dict[str, float] = {}

        def add(name: str) -> Numbers:
            log.info("starting %s", name)
            task: Numbers = {"socket": lineup.socket, "folder": str(folder), "model": model, "name": name}
            task |= {"settings": [*settings_of(name), *settings], "batch_size": batch_size, "threads": threads}
            (facts,) = lineup.add(name, Child.of(train, task, folder / f"{name}.log"))
            lineup.turn(name, num_warmup=2, num_steps=0)
            return facts

        def images_s(name: str, repeat: int) -> float:
            (reply,) = lineup.turn(name, num_warmup=1, num_steps=steps)
            memory_gb[name] = reply["memory_gb"]
            return float(batch_size * steps / reply["seconds"])

        facts = add(PLAIN)
        for name in chosen:
            if name != PLAIN:
                add(name)
            speeds = interleaved(dict.fromkeys([PLAIN, name]), repeats, images_s)
            middle = medians(speeds)
            ratio = medians([{name: value} for value in each_ratio(speeds, f"{name}/{PLAIN}")])[name]
            options[name] = {"images_per_s": middle[name], "ratio": ratio, "memory_gb": memory_gb[name]}
            plain_speed = plain_speed or middle[PLAIN]
            log.info("%s: %.2f images/s, %.2f of plain, %.2f GB", name, middle[name], ratio, memory_gb[name])
            if name != PLAIN:
                lineup.turn(name, is_last=True)
                lineup.running.pop(name).end()
        lineup.turn(PLAIN, is_last=True)
    plain = {key: facts[key] for key in ("flops", "flops_per_s")}
    plain["share"] = plain["flops"] / (batch_size / plain_speed) / plain["flops_per_s"]
    environment = machine() | {"model": model, "batch_size": batch_size, "threads": threads, "settings": list(settings)}
    return {"options": options, "plain": plain, "environment": environment}


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    plain, environment = numbers["plain"], numbers["environment"]
    title = (
        f"{environment['model']}, {environment['batch_size']} images a step; plain: {plain['flops'] / 1e9:.0f} GFLOP a "
        f"step, {100 * plain['share']:.0f} % of the rate of fp32 matrix products here"
    )
    rows = [["precision", "kernels", "memory", "images", "images/s", "of plain", "GB", ""]]
    for name, row in numbers["options"].items():
        precision, kernels, memory, *piped = name.split()
        slower = "slower than without" if row["ratio"] < 0.97 and memory == "plain" else ""
        speed = [f"{row['images_per_s']:.2f}", f"{row['ratio']:.2f}", f"{row['memory_gb']:.2f}"]
        rows.append([precision, kernels, memory, PIPED if piped else "held", *speed, slower])
    return "\n".join([title, *aligned(rows, 4)])


def train(
    name: str, socket: str, folder: str, model: str, settings: Sequence[str], batch_size: int, threads: int
) -> None:
    """Train with a combination of options in this process, one turn at a time."""
    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        keep_freed_memory()
    is_piped = name.endswith(PIPED)
    config, model_settings = MODELS[model]
    image_settings = (
        *(("data=parquet", f"data.path={folder}") if is_piped else ("data=synthetic",)),
        "data.image_size=224",
        f"data.lanes={min(batch_size, 64)}",
        f"train.batch_size={batch_size}",
        "train.epochs=10000",
        "optim.warmup=0st",
        "train.online_knn_every=null",
        "benchmarks=[]",
        "train.log_every=1000st",
    )
    run = prepare(load_config(config, [*model_settings, *image_settings, *settings]))
    prepare_device(run.config.train, device)
    state = TrainState.create(run.setup, device, run.classes)
    stream = LocalBatches(run.loader, device=device, threads=READ_AHEAD if is_piped else 0).from_step(0)
    batches = stream if is_piped else cycle(islice(stream, NUM_BATCHES))
    facts: Numbers = {}
    if name == PLAIN:
        rate = _product_rate(device)
        facts = {"flops": float(_flops(state, next(batches), run)), "flops_per_s": rate}
    gate = Gate(join(socket, name, **facts), batches, device)
    with suppress(StopIteration):  # the last turn is over
        fit(state, state.method, run.setup.plan, gate, reporter=LocalReporter())


def _flops(state: TrainState, batch: Batch, run: Prepared) -> int:
    """Count FLOPs of a step, forward and backward: two for a multiplication and its addition."""
    with FlopCounterMode(display=False) as counter:
        state.method(batch, run.setup.plan.step(0)).loss.backward()
    state.method.zero_grad(set_to_none=True)
    count: int = counter.get_total_flops()
    return count


def _product_rate(device: torch.device, seconds: float = 0.5, repeats: int = 3) -> float:
    """Return FLOPs a second of a product of two large fp32 matrices, in the fastest of some spells."""
    first, second = torch.randn(2, SIDE, SIDE, device=device)
    rates = []
    float((first @ second)[0, 0])  # warms up; reading a value waits for the device
    for _ in range(repeats):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            float((first @ second)[0, 0])
            count += 1
        rates.append(2 * SIDE**3 * count / (time.perf_counter() - start))
    return max(rates)
