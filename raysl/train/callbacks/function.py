"""A function of a user's own on the backbone, every so often."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from raysl import distributed as dist
from raysl.components import resolve_function
from raysl.config.ranges import Every
from raysl.config.schema import CallbackConfig
from raysl.errors import RunFailed
from raysl.methods.method import StepOutput
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run

log = logging.getLogger("raysl")


class Function(Callback):
    """Logs what a function `(run, backbone) -> {name: number}` gives, every so often and after the last step.

    All workers call it with the exported backbone in evaluation mode, without gradients. A dict inside the dict gives
    names such as `a/b`. Logged are means over workers, so it may measure all of something on each of them, or a share
    of equal size. What it draws from torch's generators changes nothing of the training.

    Raises:
        RunFailed: on all workers, if it raises an error on one, or gives anything but numbers, or other names there.

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
        """What its names begin with in the log."""

        def __post_init__(self) -> None:
            super().__post_init__()
            file, colon, name = self.function.rpartition(":")
            if file.endswith(".py"):  # a second start may be in another directory
                object.__setattr__(self, "function", f"{Path(file).expanduser().absolute()}{colon}{name}")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.function = resolve_function(config.function, "function")

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if not self.config.every.is_due(step) and step.index != step.total:
            return
        numbers, error = self._measured(run)
        told = dist.gather_objects((error, list(numbers)))
        if problem := next((error for error, _ in told if error), None):
            raise RunFailed(f"callbacks: {self.config.function} at step {step.index}: {problem}")
        if any(names != list(numbers) for _, names in told):
            raise RunFailed(f"callbacks: {self.config.function} gives other names on other workers; give the same")
        if numbers:
            values = torch.tensor(list(numbers.values()), dtype=torch.float64, device=run.state.device)
            run.log(dict(zip(numbers, dist.all_mean(values).tolist(), strict=True)))

    def _measured(self, run: Run) -> tuple[dict[str, float], str | None]:
        """Its numbers, or what is wrong: an exception here would leave the other workers waiting."""
        backbone = run.state.exported()
        was_training = backbone.training
        backbone.eval()
        try:
            with torch.no_grad():
                return dict(_flat(self.function(run, backbone), self.config.prefix)), None
        except Exception as error:
            log.exception("%s failed", self.config.function)
            return {}, f"{type(error).__name__}: {error}"
        finally:
            backbone.train(was_training)


def _flat(found: Any, prefix: str) -> Iterator[tuple[str, float]]:
    if not isinstance(found, Mapping):
        raise TypeError(f"it gave a {type(found).__name__}; give a dict of numbers by name")
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
            continue
        try:
            yield f"{prefix}{name}", float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{prefix}{name} is a {type(value).__name__}; give a number") from error
