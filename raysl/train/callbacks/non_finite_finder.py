"""The layer whose output was the first to be NaN or infinite."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.train.callbacks.callback import Callback, Run, Step, StepOutput

FILE = "non_finite.json"
STEPS = 2  # a GPU's loss is read one step late


class NonFiniteFinder(Callback):
    """Names the layer whose output was the first to be NaN or infinite in the step that ended the run.

    Writes `non_finite.json`: the step and, for each worker, the layer and its position in the forward pass, which of
    its own parameters are not finite (then an earlier update destroyed them), the images of the batch by index, and
    those whose views were not finite. Views are a function of (seed, epoch, index), so the indices suffice to make them
    again. The output of every layer is checked; on a GPU no step waits for that. For a part that `train.compile`
    compiles, the layer around it is named.

    Source: CheckNanModelOutputHook of VISSL, detect_anomaly of Detectron2.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.steps: dict[int, _Passes] = {}
        self.current: _Passes | None = None
        self.hooks = ExitStack()

    def __deepcopy__(self, memo: dict[int, Any]) -> "NonFiniteFinder":
        # a copied method carries these hooks along; only forward passes of training count
        return self

    @override
    def on_train_start(self, run: Run) -> None:
        method = run.state.method
        self.hooks.enter_context(method.register_forward_pre_hook(self._begin, with_kwargs=True))
        for name, module in method.named_modules():
            if module is not method:
                self.hooks.enter_context(module.register_forward_hook(partial(self._look, name)))
        self.hooks.enter_context(method.register_forward_hook(self._end))

    @override
    def on_non_finite(self, run: Run, step: Step) -> None:
        passes = self.steps.get(step.index, _Passes())
        position, name = passes.first_bad()
        report: dict[str, Any] = {"rank": dist.rank(), "place": position, "layer": name}
        report |= {"kind": None, "bad_parameters": []}
        if name is not None:
            module = run.state.method.get_submodule(name)
            report |= {"kind": type(module).__name__, "bad_parameters": _bad_parameters(module)}
        report |= {"index": passes.index(), "bad_images": passes.bad_images()}
        reports = dist.gather_objects(report)
        if dist.is_main():
            with run.writing() as folder:
                (folder / FILE).write_text(json.dumps({"step": step.index, "ranks": reports}, indent=1))
        run.note(_describe(step, reports))

    @override
    def on_train_end(self, run: Run) -> None:
        self.hooks.close()

    def _begin(self, method: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [*args, *kwargs.values()]
        batch = next(value for value in inputs if isinstance(value, Batch))
        step = next(value for value in inputs if isinstance(value, Step))
        self.current = self.steps.setdefault(step.index, _Passes())
        self.current.batches.append(batch)
        self.steps = {index: passes for index, passes in self.steps.items() if index > step.index - STEPS}

    def _look(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        # before anything else: values that change each step would make each step compile
        if torch.compiler.is_compiling():
            return
        if self.current is not None:
            self.current.look(name, output)

    def _end(self, method: nn.Module, args: Any, output: StepOutput) -> None:
        if self.current is not None:
            self.current.look("", output.loss)
            self.current = None


class _Passes:
    """Layer outputs of the forward passes of a step, in order; read from the device only on request."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.flags: list[Tensor] = []
        self.batches: list[Batch] = []

    def look(self, name: str, output: Any) -> None:
        for value in _tensors(output):
            if value.is_floating_point():
                self.names.append(name)
                wide = torch.promote_types(value.dtype, torch.float32)  # a sum in half precision could overflow
                self.flags.append(value.detach().sum(dtype=wide).isfinite())  # one pass, where isfinite().all() is four

    def first_bad(self) -> tuple[int | None, str | None]:
        """Return position and name of the first layer with a bad output, or None twice."""
        flags = torch.stack(self.flags).tolist() if self.flags else []
        return next(((position, self.names[position]) for position, flag in enumerate(flags) if not flag), (None, None))

    def index(self) -> list[int]:
        return [index for batch in self.batches for index in batch.index.tolist()]

    def bad_images(self) -> list[int]:
        images: list[int] = []
        for batch in self.batches:
            for views in batch.views.values():
                images += batch.index[~views.flatten(1).isfinite().all(dim=1)].tolist()
        return sorted(set(images))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _bad_parameters(module: nn.Module) -> list[str]:
    return [name for name, weight in module.named_parameters(recurse=False) if not dist.local(weight).isfinite().all()]


def _describe(step: Step, reports: list[dict[str, Any]]) -> str:
    affected = [report for report in reports if report["place"] is not None]
    if not affected:
        return f"step {step.index}: every layer's output was finite; {FILE} lists the images"
    # synchronised batch normalisation hands the values on to the other workers: the earliest layer counts
    first = min(affected, key=lambda report: report["place"])
    where = f"{first['layer']} ({first['kind']})" if first["layer"] else f"{first['kind']} itself, after its layers,"
    cause = "its parameters are finite"
    if first["bad_parameters"]:
        cause = f"an earlier update destroyed its {', '.join(first['bad_parameters'])}"
    if first["bad_images"]:
        cause = f"{len(first['bad_images'])} images of the batch were not finite"
    return (
        f"step {step.index}: {where} on worker {first['rank']} was the first with an output that is not finite; "
        f"{cause}; {FILE} lists the images"
    )
