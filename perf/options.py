"""`python -m perf options`: effect of precision, memory format, compiling, recomputing and accumulating on a step.

Each combination is a process of its own, beside one with none of them. Both train on the same batches, made beforehand,
and take turns, so that the machine's slow spells meet both. Speed is a ratio to the plain one, memory is that of the
process, or on a GPU what tensors had at most. A name that ends in `piped` has its images read, decoded and augmented
by threads of the process as it trains.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perf.numbers import machine, medians, rotated
from perf.pictures import write_pictures
from perf.processes import Child, Lineup
from perf.turns import LAST_TURN, Gate, Starter, Turn
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.shared.device import prepare_device
from raysl.process.memory import keep_freed_memory
from raysl.train.loop import fit
from raysl.train.prepare import Prepared, prepare
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState

log = logging.getLogger("raysl")

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
PLAIN = "fp32 default plain"
PIPED = "piped"
NUM_BATCHES = 2
NUM_PICTURES = 256
READ_AHEAD = 2  # threads of a piped process beside those of torch
SIDE = 2048  # of the square matrices whose product gives the machine's rate


@dataclass(frozen=True, kw_only=True)
class Task:
    """Settings of a contender's process.

    Args:
        name: the options in words.
        socket: where turns are given.
        folder: for what it writes.
        model: of `MODELS`.
        words: further settings.
        batch_size: images.
        threads: of torch.
        world: always 1.
    """

    name: str
    socket: str
    folder: str
    model: str
    words: Sequence[str]
    batch_size: int
    threads: int
    world: int = 1

    def to_json(self) -> str:
        """Return it as one argument of a command line."""
        return json.dumps(asdict(self))

    @property
    def is_piped(self) -> bool:
        """Whether images are made while it trains."""
        return self.name.split()[-1] == PIPED

    def prepared(self) -> Prepared:
        """The run that is trained: on images that are made, or on photographs in the folder."""
        config, words = MODELS[self.model]
        images = ("data=parquet", f"data.path={self.folder}") if self.is_piped else ("data=synthetic",)
        own = (
            *images,
            "data.image_size=224",
            f"data.lanes={min(self.batch_size, 64)}",
            f"train.batch_size={self.batch_size}",
            "train.epochs=10000",
            "optim.warmup=0st",
            "train.online_knn_every=null",
            "benchmarks=[]",
            "train.log_every=1000st",
        )
        return prepare(load_config(config, [*words, *own, *self.words]))


def option_names() -> list[str]:
    """All combinations, the plain one first, and those without any of memory's options through the pipeline."""
    names = [" ".join(names) for names in product(PRECISION, KERNELS, MEMORY)]
    return [*names, *(f"{precision} default plain {PIPED}" for precision in PRECISION)]


def words_of(name: str) -> tuple[str, ...]:
    """The settings of a combination.

    Raises:
        ConfigError: if there is no such one.
    """
    parts = name.removesuffix(f" {PIPED}").split()
    tables = (PRECISION, KERNELS, MEMORY)
    if len(parts) != 3 or any(part not in table for part, table in zip(parts, tables, strict=True)):
        raise ConfigError(f"no options {name!r}; write one of {', '.join(option_names())}")
    return tuple(word for part, table in zip(parts, tables, strict=True) for word in table[part])


def measure_options(
    model: str,
    names: Sequence[str] | None = None,
    *,
    repeats: int = 3,
    steps: int = 1,
    batch_size: int = 8,
    threads: int | None = None,
    words: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure speed and memory of a step with each combination of options, and without.

    Args:
        model: of `MODELS`.
        names: of `option_names`; default: all.
        repeats: turns of each.
        steps: that a turn times.
        batch_size: images.
        threads: of each process; default: one a CPU.
        words: further settings of all, such as a smaller network.

    Returns:
        `options`, by name: `images_per_s`, `ratio` to the plain one of the same turns (medians), `memory_gb`; `plain`:
        `flops` of a step and `share` of the rate of matrix products in its precision; `environment`.

    Raises:
        ConfigError: if there is no such model or combination.
        RunFailed: if a process fails.
    """
    if model not in MODELS:
        raise ConfigError(f"no model {model!r}; choose from {', '.join(MODELS)}")
    threads = threads or os.cpu_count() or 1
    chosen = {name: words_of(name) for name in names or option_names()}
    found: dict[str, dict[str, float]] = {}
    facts: dict[str, float] = {}
    with _ready(model, batch_size, threads, words) as start:
        for name, own in chosen.items():
            speeds, memory, plain = start(name, own, repeats, steps)
            middle = medians(speeds)
            ratio = medians([{"ratio": speed[name] / speed[PLAIN]} for speed in speeds])["ratio"]
            found[name] = {"images_per_s": middle[name], "ratio": ratio, "memory_gb": memory}
            facts = facts or plain
            log.info("%s: %.2f images/s, %.2f of plain, %.2f GB", name, middle[name], ratio, memory)
    plain_speed = facts.pop("images_per_s")
    seconds = batch_size / plain_speed
    facts["share"] = facts["flops"] / seconds / facts["flops_per_s"]
    environment = machine() | {"model": model, "batch_size": batch_size, "threads": threads, "words": list(words)}
    return {"options": found, "plain": facts, "environment": environment}


def options_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_options` as text."""
    plain, where = numbers["plain"], numbers["environment"]
    lines = [
        f"{where['model']}, {where['batch_size']} images a step; plain: {plain['flops'] / 1e9:.0f} GFLOP a step, "
        f"{100 * plain['share']:.0f} % of the rate of fp32 matrix products here",
        f"{'precision':<10}{'kernels':<15}{'memory':<13}{'images':<8}{'images/s':>9}{'of plain':>10}{'GB':>8}",
    ]
    for name, row in numbers["options"].items():
        precision, kernels, memory, *piped = name.split()
        slower = "  slower than without" if row["ratio"] < 0.97 and memory == "plain" else ""
        lines.append(
            f"{precision:<10}{kernels:<15}{memory:<13}{PIPED if piped else 'held':<8}{row['images_per_s']:>9.2f}"
            f"{row['ratio']:>10.2f}"
            f"{row['memory_gb']:>8.2f}{slower}"
        )
    return "\n".join(lines)


@contextmanager
def _ready(model: str, batch_size: int, threads: int, words: Sequence[str]) -> Iterator[Any]:
    """Return a function that compares one combination with the plain step, which is started once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raysl_speed_")))
        write_pictures(folder / "train-0.parquet", 224, NUM_PICTURES)
        starter = Starter(folder)
        lineup: Lineup[Task] = Lineup(starter)
        stack.callback(lineup.end)
        stack.enter_context(starter)

        def add(name: str, own: Sequence[str]) -> dict[str, Any]:
            task = Task(
                name=name,
                socket=starter.path,
                folder=str(folder),
                model=model,
                words=[*own, *words],
                batch_size=batch_size,
                threads=threads,
            )
            log.info("starting %s", name)
            lineup.add(partial(Child, "train", module="perf.options"), task)
            try:
                starter.run(name, Turn(num_warmup=2, num_steps=0))
            except (EOFError, OSError):
                lineup.running[name].end()
                lineup.running[name].check()
                raise
            return starter.hellos[name][0]

        reply = add(PLAIN, words_of(PLAIN))
        facts = {"flops": reply["flops"], "flops_per_s": reply["flops_per_s"]}

        def measure(name: str, own: Sequence[str], repeats: int, steps: int) -> Any:
            if name != PLAIN:
                add(name, own)
            speeds = []
            for repeat in range(repeats):
                images = batch_size * steps
                turns = rotated(list(dict.fromkeys([PLAIN, name])), repeat)
                speeds.append({one: images / starter.run(one, Turn(1, steps)) for one in turns})
            memory = starter.memory[name]
            if name != PLAIN:
                starter.run(name, LAST_TURN)
                lineup.running.pop(name).end()
            return speeds, memory, {**facts, "images_per_s": medians(speeds)[PLAIN]}

        yield measure
        starter.run(PLAIN, LAST_TURN)


class _Made(Sequence[Batch]):
    """A stream of batches as a list that is read once, from its beginning on."""

    def __init__(self, stream: Iterator[Batch]) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: Any) -> Any:
        return next(self.stream)


def train(task: Task) -> None:
    """Train the task's run, one turn at a time."""
    torch.set_num_threads(task.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        keep_freed_memory()
    run = task.prepared()
    prepare_device(run.config.train, device)
    state = TrainState.create(run.setup, device, run.classes)
    stream = LocalBatches(run.loader, device=device, threads=READ_AHEAD if task.is_piped else 0).from_step(0)
    batches = _Made(stream) if task.is_piped else list(islice(stream, NUM_BATCHES))
    facts: dict[str, float] = {}
    if task.name == PLAIN:
        rate = _product_rate(device)
        facts = {"flops": float(_flops(state, batches[0], run)), "flops_per_s": rate}
    gate = Gate(task.socket, task.name, 0, batches, device=device, facts=facts)
    with suppress(StopIteration):  # the last turn is over
        fit(state, state.method, run.setup.plan, gate, reporter=LocalReporter())


def _flops(state: TrainState, batch: Any, run: Prepared) -> int:
    """Count FLOPs of a step, forward and backward: two for a multiplication and its addition."""
    with FlopCounterMode(display=False) as counter:
        state.method(batch, run.setup.plan.step(0)).loss.backward()
    state.method.zero_grad(set_to_none=True)
    count: int = counter.get_total_flops()
    return count


def _product_rate(device: torch.device, seconds: float = 0.5, repeats: int = 3) -> float:
    """Floating-point operations a second of a product of two large fp32 matrices, in the fastest of some spells."""
    left, right = torch.randn(2, SIDE, SIDE, device=device)

    def done(out: Tensor) -> None:
        float(out[0, 0])  # waits for the device

    done(left @ right)
    rates = []
    for _ in range(repeats):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            done(left @ right)
            count += 1
        rates.append(2 * SIDE**3 * count / (time.perf_counter() - start))
    return max(rates)


if __name__ == "__main__":
    train(Task(**json.loads(sys.argv[2])))
