"""Medians and means of logged numbers over the newest lines."""

import statistics
from dataclasses import dataclass
from typing import Annotated, Any

from raysl.config.ranges import Count, NotEmpty
from raysl.config.schema import CallbackConfig
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class Windows(Callback):
    """Logs `NAME_median` and `NAME_mean` of numbers over the newest logged lines that have them.

    It sees what the loop, the method and the callbacks before it have logged, and not what is measured at the end of an
    epoch, such as `knn_top1`. The lines survive a restart. With
    `train.log_every=1st` they are all steps.

    Source: EventStorage and HistoryBuffer of Detectron2 (`latest_with_smoothing_hint`, a median over 20).
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the windows."""

        names: Annotated[tuple[str, ...], NotEmpty()] = ("loss", "step_s", "data_wait")
        """Numbers of a line."""
        size: Count = 20
        """Lines."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.values: dict[str, list[float]] = {name: [] for name in self.config.names}

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if not run.is_log_due(step):
            return
        for name in self.config.names:
            if name in run.line:
                self.values[name] = [*self.values[name], run.line[name]][-self.config.size :]
                mean = statistics.fmean(self.values[name])
                run.log({f"{name}_median": statistics.median(self.values[name]), f"{name}_mean": mean})

    def state_dict(self) -> dict[str, Any]:
        """See `Callback.state_dict`."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state_dict`; numbers that are not asked for any more are dropped."""
        self.values |= {name: values for name, values in state.get("values", {}).items() if name in self.values}
