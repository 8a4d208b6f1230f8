"""A profile of a few training steps."""

from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Count, Place
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run, Step, StepOutput

ROWS = 30


class Profiler(Callback):
    """Records the operators of a few steps with torch's profiler, on the main rank.

    Writes `trace_step<start>.json`, for chrome://tracing, Perfetto or TensorBoard, and `profile_step<start>.txt`, the
    operators that took the most time. A run that is resumed after `start` records nothing. Recorded steps are slower.

    Source: TorchProfiler of Detectron2, ProfilingHook of VISSL.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the profile."""

        start: Place = 10
        """Step of the run at which the warm-up of the profiler begins."""
        warm_up: Count = 1
        """Steps of the warm-up, which are not recorded."""
        steps: Count = 3
        """Steps recorded after the warm-up."""
        memory: bool = False
        """Record memory too."""
        shapes: bool = False
        """Record the shapes of inputs too."""

    @override
    def on_train_start(self, run: Run) -> None:
        self.profile: Any = None
        self._begin_at(run.state.step, run)

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index in (self.config.start + self.config.warm_up + self.config.steps, step.total):
            self._end(run, step.index)
        elif self.profile is not None:
            self.profile.step()
        self._begin_at(step.index, run)

    def on_train_end(self, run: Run) -> None:
        # a run that ends inside the window keeps what was recorded
        self._end(run, run.state.step)

    def _begin_at(self, index: int, run: Run) -> None:
        if index != self.config.start or not dist.is_main():
            return
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (run.state.device.type == "cuda")
        self.profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=self.config.warm_up, active=self.config.steps + 1, repeat=1),
            profile_memory=self.config.memory,
            record_shapes=self.config.shapes,
        )
        self.profile.start()

    def _end(self, run: Run, index: int) -> None:
        if self.profile is None:
            return
        self.profile.stop()
        recorded, self.profile = self.profile, None
        if index <= self.config.start + self.config.warm_up:
            return
        by = "self_device_time_total" if run.state.device.type == "cuda" else "self_cpu_time_total"
        with run.writing() as folder:
            recorded.export_chrome_trace(str(folder / f"trace_step{self.config.start}.json"))
            table = recorded.key_averages().table(sort_by=by, row_limit=ROWS)
            (folder / f"profile_step{self.config.start}.txt").write_text(table)
