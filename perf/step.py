"""`python -m perf step`: cost of raysl's loop and of Ray Train per training step.

Five programs train the same network on the same batches, held in memory. All are alive at once and take turns on this
machine's CPUs, in an order that changes from repeat to repeat, so that its slow spells meet all of them alike. What
Ray's own processes use in the background they use during every turn: `environment.idle_cpus` tells how much that is.
Where Ray is not installed, those on Ray Train are left out, and raysl's loop runs under torchrun too.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perf.contenders import Task
from perf.numbers import machine, medians, ratios, rotated, verdict
from perf.processes import Child, Lineup, RayRun, idle_cpus
from perf.turns import LAST_TURN, Starter, Turn
from perf.workload import Workload

log = logging.getLogger("raysl")

GOALS = {"b/a": 0.98, "c/a": 0.95, "e/d": 0.97, "f/d": 0.97}
FIRST_TURN = Turn(num_warmup=2, num_steps=0)
IDLE_S = 3.0


@dataclass(frozen=True)
class Contender:
    """A program of `perf.contenders` and its number of processes."""

    title: str
    program: str
    world: int

    @property
    def is_on_ray(self) -> bool:
        """Whether Ray Train starts it."""
        return self.program == "fit_on_ray"


CONTENDERS = {
    "a": Contender("bare loop", "bare_loop", 1),
    "b": Contender("raysl's fit", "fit_alone", 1),
    "c": Contender("raysl's fit on Ray Train", "fit_on_ray", 1),
    "d": Contender("bare loop with DDP, torchrun", "bare_loop", 2),
    "e": Contender("raysl's fit on Ray Train", "fit_on_ray", 2),
    "f": Contender("raysl's fit, torchrun", "fit_alone", 2),
}


def default_names() -> str:
    """Return the contenders that can run here, with a line if those on Ray cannot."""
    if find_spec("ray") is not None:
        return "abcde"
    log.info("Ray is not installed: leaving out c and e, which run on Ray Train; f is raysl's fit under torchrun")
    return "abdf"


def measure_step(
    names: str | None = None,
    *,
    repeats: int = 5,
    steps: int = 3,
    warmup: int = 1,
    workload: Workload | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Images a second of each contender.

    Args:
        names: keys of `CONTENDERS`; default: `default_names`.
        repeats: turns of each.
        steps: that a turn times.
        warmup: steps before them that are not timed.
        workload: what is trained; default: ResNet-18, 64 images a process.
        threads: of each contender, over all its processes; default: one a CPU.

    Returns:
        `step` and `ratios` (medians over repeats), `repeats` (images a second), `environment`.

    Raises:
        RunFailed: if a contender fails.
    """
    names = names or default_names()
    workload = workload or Workload()
    environment = machine() | {"workload": asdict(workload), "steps": steps, "warmup": warmup}
    num_steps = FIRST_TURN.num_warmup + repeats * (warmup + steps) + LAST_TURN.num_warmup
    measured: list[dict[str, float]] = []
    with _ready(names, workload, num_steps, threads or os.cpu_count() or 1) as lineup:
        environment |= {key: lineup.facts(key) for key in ("threads", "niceness")}
        for name in names:
            lineup.run(name, FIRST_TURN)
        environment["idle_cpus"] = idle_cpus(IDLE_S)
        for repeat in range(repeats):
            speeds = {}
            for name in rotated(names, repeat):
                images = CONTENDERS[name].world * workload.batch_size * steps
                speeds[name] = images / lineup.run(name, Turn(warmup, steps))
            measured.append({name: speeds[name] for name in names})
            shown = "  ".join(f"{name} {speed:.1f}" for name, speed in measured[-1].items())
            log.info("repeat %d of %d, images/s: %s", repeat + 1, repeats, shown)
        for name in names:
            lineup.run(name, LAST_TURN)
    return {
        "step": medians(measured),
        "ratios": ratios(measured, GOALS),
        "repeats": measured,
        "environment": environment,
    }


def step_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_step` as text."""
    threads = numbers["environment"]["threads"]
    lines = [f"   {'contender':<30}{'processes x threads':>20}{'images/s':>10}"]
    for name, speed in numbers["step"].items():
        shape = f"{len(threads[name])} x {threads[name][0]}"
        lines.append(f"{name}  {CONTENDERS[name].title:<30}{shape:>20}{speed:>10.2f}")
    for name, ratio in numbers["ratios"].items():
        each = [ratios([repeat], [name])[name] for repeat in numbers["repeats"]]
        span = f"{min(each):.3f} to {max(each):.3f}"
        lines.append(f"{name} {ratio:.3f} ({span})  goal at least {GOALS[name]}: {verdict(ratio >= GOALS[name])}")
    idle = numbers["environment"]["idle_cpus"]
    if idle is not None:
        lines.append(f"{idle:.2f} CPUs in use while all wait")
    return "\n".join(lines)


class _Lineup(Lineup[Task]):
    """The started contenders, each waiting for its turn."""

    def facts(self, key: str) -> dict[str, list[int]]:
        """Reports of each contender's processes when they were ready."""
        return {
            name: [hellos[rank][key] for rank in sorted(hellos)] for name, hellos in sorted(self.starter.hellos.items())
        }

    def run(self, name: str, turn: Turn) -> float:
        """Return the seconds of a contender's turn."""
        try:
            return self.starter.run(name, turn)
        except (EOFError, OSError):
            self.running[name].end()
            self.running[name].check()  # says more of what went wrong
            raise


def _connect(stack: ExitStack) -> None:
    import ray

    from raysl.cluster.connection import connect

    if not ray.is_initialized():
        connect()
        stack.callback(ray.shutdown)


@contextmanager
def _ready(names: str, workload: Workload, num_steps: int, threads: int) -> Iterator[_Lineup]:
    """Start the contenders one by one; those on Ray first, whose niceness the others take over."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raysl_speed_")))
        if any(CONTENDERS[name].is_on_ray for name in names):
            _connect(stack)
        starter = Starter(folder)
        lineup = _Lineup(starter)
        stack.callback(lineup.end)
        stack.enter_context(starter)
        niceness = 0
        for name in sorted(names, key=lambda name: not CONTENDERS[name].is_on_ray):
            contender = CONTENDERS[name]
            task = Task(
                name=name,
                socket=starter.path,
                folder=str(folder),
                workload=workload,
                num_steps=num_steps,
                world=contender.world,
                threads=max(1, threads // contender.world),
                niceness=niceness,
            )
            log.info("starting %s: %s, %d process(es)", name, contender.title, contender.world)
            start = RayRun if contender.is_on_ray else partial(Child, contender.program)
            niceness = max(niceness, lineup.add(start, task))
        yield lineup
