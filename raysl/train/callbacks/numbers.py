"""More numbers for the logged line: time, memory, learning rates, and averages over lines."""

import statistics
import time
from collections import deque
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Count, NotEmpty, Place
from raysl.errors import log
from raysl.process.memory import most_resident, resident
from raysl.process.screen import duration
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run, Step, StepOutput


class IterationTimer(Callback):
    """Logs the average and the median time of a step, the share that callbacks take of it, and the time left.

    Adds to each logged line, for this start and its main rank: `timer/mean_s`, over all steps after the warm-up;
    `timer/median_s`, over the newest `window` steps; `timer/callbacks`, in [0, 1]; `timer/left_s`. A step lasts from
    the end of the previous one to its own end. That includes waits for data, and waits for a GPU only where something
    reads from it: on a GPU trust the mean, not the time of single steps. A summary is logged at the end.

    Source: IterationTimer of Detectron2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the timer."""

        warm_up: Place = 3
        """First steps of a start that are not timed."""
        window: Count = 20
        """Newest steps, for the median."""

    last: float
    num_steps: int

    @override
    def on_train_start(self, run: Run) -> None:
        self.num_seen = 0
        self.steps: deque[float] = deque(maxlen=self.config.window)
        self._begin(run)

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        now, self.num_seen = time.perf_counter(), self.num_seen + 1
        if self.num_seen <= self.config.warm_up:
            self._begin(run)
            return
        self.num_steps += 1
        self.steps.append(now - self.last)
        self.last = now
        if run.is_log_due(step):
            mean = self._mean()
            run.log(
                {
                    "timer/mean_s": mean,
                    "timer/median_s": statistics.median(self.steps),
                    "timer/callbacks": self._callback_share(run),
                    "timer/left_s": mean * (step.total - step.index),
                }
            )

    @override
    def on_train_end(self, run: Run) -> None:
        if self.num_steps and dist.is_main():
            log.info(
                "%d steps in %s, %.4g s each, of which callbacks took %.1f %%",
                self.num_steps,
                duration(self.last - self.start),
                self._mean(),
                100 * self._callback_share(run),
            )

    def _begin(self, run: Run) -> None:
        self.start = self.last = time.perf_counter()
        self.callbacks_before = run.callback_s
        self.num_steps = 0

    def _mean(self) -> float:
        return (self.last - self.start) / self.num_steps

    def _callback_share(self, run: Run) -> float:
        return (run.callback_s - self.callbacks_before) / max(self.last - self.start, 1e-9)


class LearningRates(Callback):
    """Logs `lr/N` and `weight_decay/N` of the last update for each group N of the optimizer's parameters.

    The groups are those of `Method.param_groups`, counted from 0. The `lr` that every line has is the schedule's value,
    before a group's `lr_scale`.

    Source: LogLossLrEtaHook of VISSL, LRScheduler of Detectron2 (which write one group's).
    """

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if not run.is_log_due(step):
            return
        for number, group in enumerate(run.state.optimizer.param_groups):
            run.log({f"lr/{number}": float(group["lr"]), f"weight_decay/{number}": float(group["weight_decay"])})


MEMORY_FILE = "memory_summary.txt"


class MemoryStats(Callback):
    """Logs the memory in use, in GB (1e9 bytes): the largest value of all workers.

    `memory/resident_gb` and `memory/resident_peak_gb` of the process; on a GPU also `memory/allocated_gb` and
    `memory/allocated_peak_gb` of tensors, `memory/reserved_gb` of torch's cache and `memory/used_gb` of all processes
    on the card, and `gpu_utilization` in % where the package nvidia-ml-py is installed. At the end the main rank writes
    torch's table of allocations to `memory_summary.txt`.

    Source: TorchMemoryStats of Detectron2, LogGpuStatsHook and LogGpuMemoryHook of VISSL.
    """

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if run.is_log_due(step):
            numbers = _memory(run.state.device)
            most = -dist.all_least(-torch.tensor(list(numbers.values()), dtype=torch.float64, device=run.state.device))
            run.log(dict(zip(numbers, most.tolist(), strict=True)))

    @override
    def on_train_end(self, run: Run) -> None:
        if run.state.device.type == "cuda" and dist.is_main():
            with run.writing() as folder:
                (folder / MEMORY_FILE).write_text(torch.cuda.memory_summary(run.state.device))


def _memory(device: torch.device) -> dict[str, float]:
    num_bytes: dict[str, float] = {"resident": resident(), "resident_peak": most_resident()}
    load: dict[str, float] = {}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        num_bytes |= {
            "allocated": torch.cuda.memory_allocated(device),
            "allocated_peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "used": total - free,
        }
        if find_spec("pynvml"):
            load = {"gpu_utilization": float(torch.cuda.utilization(device))}
    return {f"memory/{name}_gb": value / 1e9 for name, value in num_bytes.items()} | load


class Windows(Callback):
    """Logs `NAME_median` and `NAME_mean` of numbers over the newest logged lines that have them.

    It sees what the loop, the method and the callbacks before it have logged, but no measurements made at the end of
    an epoch, such as `knn_k20_top1`. The lines survive a restart. With `train.log_every=1st` each step is a line.

    Source: EventStorage and HistoryBuffer of Detectron2 (`latest_with_smoothing_hint`, a median over 20).
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the windows."""

        names: Annotated[tuple[str, ...], NotEmpty()] = ("loss", "step_s", "data_wait")
        """Names of logged numbers."""
        size: Count = 20
        """Number of lines."""

    stored = ("values",)

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.values: dict[str, list[float]] = {}

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if not run.is_log_due(step):
            return
        for name in self.config.names:
            if name in run.line:
                newest = [*self.values.get(name, []), run.line[name]][-self.config.size :]
                self.values[name] = newest
                run.log({f"{name}_median": statistics.median(newest), f"{name}_mean": statistics.fmean(newest)})

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # numbers that the settings no longer name are dropped
        self.values = {name: values for name, values in self.values.items() if name in self.config.names}
