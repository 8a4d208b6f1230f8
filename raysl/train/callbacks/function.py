"""A user's function on the backbone, every so often."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.components import resolve_function
from raysl.config.ranges import Every
from raysl.errors import RunFailed, log
from raysl.nn.evaluating import evaluating
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run, StepOutput


class Function(Callback):
    """Logs the numbers of a function `(run, backbone) -> {name: number}`, every so often and after the last step.

    All workers call it with the exported backbone in evaluation mode, without gradients. Nested dicts become names such
    as `a/b`. The means over workers are logged, so each worker may measure everything, or a share of equal size.
    Random numbers that it draws from torch's generators do not change the training.

    Raises:
        RunFailed: on all workers, if on one of them it fails, returns anything but numbers, or returns other names.

    Source: EvalHook of Detectron2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Which function, and when."""

        function: str
        """`path/to/file.py:function` or `package.module:function`."""
        every: Every = field(default=Duration.parse("1ep"))
        """How often."""
        prefix: str = ""
        """Put before its names in the log."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.function = resolve_function(config.function, "function")

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if not self.config.every.is_due(step) and step.index != step.total:
            return
        numbers, error = self._measure(run)
        results = dist.gather_objects((error, list(numbers)))
        if problem := next((error for error, _ in results if error), None):
            raise RunFailed(f"callbacks: {self.config.function} at step {step.index}: {problem}")
        if any(names != list(numbers) for _, names in results):
            raise RunFailed(f"callbacks: {self.config.function} returns other names on other workers; return the same")
        if numbers:
            values = torch.tensor(list(numbers.values()), dtype=torch.float64, device=run.state.device)
            run.log(dict(zip(numbers, dist.all_mean(values).tolist(), strict=True)))

    def _measure(self, run: Run) -> tuple[dict[str, float], str | None]:
        """Return its numbers, or the error: an exception here would leave the other workers waiting."""
        backbone = run.state.exported()
        try:
            with torch.no_grad(), evaluating(backbone):
                return dict(_flatten(self.function(run, backbone), self.config.prefix)), None
        except Exception as error:
            log.exception("%s failed", self.config.function)
            return {}, f"{type(error).__name__}: {error}"


def _flatten(numbers: Any, prefix: str) -> Iterator[tuple[str, float]]:
    if not isinstance(numbers, Mapping):
        raise TypeError(f"it returned a {type(numbers).__name__}; return a dict of numbers by name")
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
            continue
        try:
            yield f"{prefix}{name}", float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{prefix}{name} is a {type(value).__name__}; return a number") from error
