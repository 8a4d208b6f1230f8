"""Histograms of weights and gradients in TensorBoard."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Every, Within
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import CallbackConfig, Run, StepOutput
from raysl.train.callbacks.tensorboard import EventCallback


class Histograms(EventCallback):
    """Writes a histogram of every parameter, as `parameters/NAME`, and of its gradient, as `gradients/NAME`.

    Gradients are taken over all workers before they are clipped, parameters after the update of the same step. Values
    that are not finite are left out. The events go to the folder `histograms`, which TensorBoard shows as a run of its
    own.

    Source: SSLTensorboardHook of VISSL.
    """

    folder = "histograms"

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the histograms."""

        every: Every = field(default=Duration.parse("1ep"))
        """How often; each time copies the tensors to the CPU."""
        parameters: bool = True
        """Write histograms of parameters."""
        gradients: bool = True
        """Write histograms of gradients."""
        bins: Annotated[int, Within(1, 10_000)] = 64
        """Number of bins."""

    @override
    def on_backward(self, run: Run, step: Step) -> None:
        if self.config.gradients and self.config.every.is_due(step.next()):
            named = run.state.method.named_parameters()
            self._write(run, step.index + 1, "gradients", [(name, w.grad) for name, w in named if w.grad is not None])

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if self.config.parameters and self.config.every.is_due(step):
            self._write(run, step.index, "parameters", run.state.method.named_parameters())

    def _write(self, run: Run, index: int, kind: str, named: Iterable[tuple[str, Tensor]]) -> None:
        # before the main rank goes on alone: `whole` is a collective of sharded tensors
        whole = dist.whole(dict(named))
        if self.file is None:
            return
        from tensorboardX.summary import histogram

        with run.writing():
            for name, tensor in whole.items():
                values = tensor.detach().float().cpu()
                values = values[values.isfinite()]
                if len(values):
                    self.file.add(index, histogram(f"{kind}/{name}", values.numpy(), self.config.bins))
