"""`python -m perf step`: cost of raysl's loop and of Ray Train per training step.

Five programs train the same network on the same batches, held in memory. All are alive at once and take turns on this
machine's CPUs; what Ray's own processes use in the background they use during every turn. Where Ray is not installed,
those on Ray Train are left out, and raysl's loop runs under torchrun too.
"""

import os
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from perf.contenders import Task, Workload, fit_on_ray, run_contender
from perf.harness import Numbers, each_ratio, interleaved, log, machine, medians, ratios, scratch_folder, span, verdict
from perf.processes import Child, Lineup, RayRun
from raysl.report.summary import aligned

GOALS = {"b/a": 0.98, "c/a": 0.95, "e/d": 0.97, "f/d": 0.97}
FIRST_STEPS, LAST_STEPS = 2, 1  # before the first turn, and behind the last one


CONTENDERS = {
    "a": ("bare loop", "bare_loop", 1),
    "b": ("raysl's fit", "fit_alone", 1),
    "c": ("raysl's fit on Ray Train", "fit_on_ray", 1),
    "d": ("bare loop with DDP, torchrun", "bare_loop", 2),
    "e": ("raysl's fit on Ray Train", "fit_on_ray", 2),
    "f": ("raysl's fit, torchrun", "fit_alone", 2),
}
"""Titles, programs of `perf.contenders` and numbers of processes."""


def default_names() -> str:
    """Return the contenders that can run here, with a line in the log if those on Ray cannot."""
    if find_spec("ray") is not None:
        return "abcde"
    log.info("Ray is not installed: leaving out c and e, which run on Ray Train; f is raysl's fit under torchrun")
    return "abdf"


def measure(
    names: str | None = None,
    *,
    repeats: int = 5,
    steps: int = 3,
    warmup: int = 1,
    workload: Workload | None = None,
    threads: int | None = None,
) -> Numbers:
    """Measure images a second of each contender.

    Returns:
        `step` and `ratios` (medians over repeats), `repeats` (images a second), `environment`.
    """
    names, workload = names or default_names(), workload or Workload()
    environment = machine() | {"workload": asdict(workload), "steps": steps, "warmup": warmup}
    num_steps = FIRST_STEPS + repeats * (warmup + steps) + LAST_STEPS
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        # Those on Ray start first: Ray makes its processes nice, and the others take over their niceness.
        starting = sorted(names, key=lambda name: CONTENDERS[name][1] != "fit_on_ray")
        if CONTENDERS[starting[0]][1] == "fit_on_ray":
            _connect(stack)
        lineup = stack.enter_context(Lineup(folder))
        niceness = 0
        for name in starting:
            title, program, world = CONTENDERS[name]
            task = Task(
                name=name,
                socket=lineup.socket,
                folder=str(folder),
                workload=workload,
                num_steps=num_steps,
                world=world,
                threads=max(1, (threads or os.cpu_count() or 1) // world),
                niceness=niceness,
            )
            log.info("starting %s: %s, %d process(es)", name, title, world)
            facts = lineup.add(name, _started(program, task), world)
            niceness = max(niceness, *(fact["niceness"] for fact in facts))
        for key in ("threads", "niceness"):
            environment[key] = {name: [fact[key] for fact in facts] for name, facts in sorted(lineup.facts.items())}
        for name in names:
            lineup.turn(name, num_warmup=FIRST_STEPS, num_steps=0)

        def images_s(name: str, repeat: int) -> float:
            replies = lineup.turn(name, num_warmup=warmup, num_steps=steps)
            images = CONTENDERS[name][2] * workload.batch_size * steps
            return float(images / max(reply["seconds"] for reply in replies))

        measured = interleaved(names, repeats, images_s, "images/s")
        for name in names:
            lineup.turn(name, is_last=True)
    return {
        "step": medians(measured),
        "ratios": ratios(measured, GOALS),
        "repeats": measured,
        "environment": environment,
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    rows = [["", "contender", "processes x threads", "images/s"]]
    for name, speed in numbers["step"].items():
        threads = numbers["environment"]["threads"][name]
        rows.append([name, CONTENDERS[name][0], f"{len(threads)} x {threads[0]}", f"{speed:.2f}"])
    lines = aligned(rows, 2)
    for name, ratio in numbers["ratios"].items():
        each = span(each_ratio(numbers["repeats"], name), ".3f")
        lines.append(f"{name} {ratio:.3f} {each}  goal at least {GOALS[name]}: {verdict(ratio >= GOALS[name])}")
    return "\n".join(lines)


def _started(program: str, task: Task) -> Child | RayRun:
    if program == "fit_on_ray":
        return RayRun(task, fit_on_ray)
    log_file = Path(task.folder) / f"{task.name}.log"
    return Child.of(run_contender, asdict(task) | {"program": program}, log_file, task.world)


def _connect(stack: ExitStack) -> None:
    import ray

    from raysl.cluster.connection import connect

    if not ray.is_initialized():
        connect()
        stack.callback(ray.shutdown)
