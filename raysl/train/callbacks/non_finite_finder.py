"""Where the first number that is none came from."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

FILE = "non_finite.json"
STEPS = 2  # a GPU's loss is read one step late


class NonFiniteFinder(Callback):
    """Names the layer whose output was the first to be NaN or infinite in the step that ended the run.

    Writes `non_finite.json`: the step and, for each worker, the layer and its place in the pass, which of its own
    parameters are not finite (then an earlier update destroyed them), the images of its batch by index, and those whose
    views were not finite. Views are a function of (seed, epoch, index), so the indices are enough to make them again.
    Looks at the output of every layer in the forward pass of a step; on a GPU nothing waits for it. Of
    what `train.compile` compiles the layer is the one around it.

    Source: CheckNanModelOutputHook of VISSL, detect_anomaly of Detectron2.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.steps: dict[int, _Passes] = {}
        self.current: _Passes | None = None
        self.handles: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "NonFiniteFinder":
        return self  # a copy of the method has the same hooks, which look at the passes of training alone

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        method = run.state.method
        self.handles.append(method.register_forward_pre_hook(self._begin, with_kwargs=True))
        for name, module in method.named_modules():
            if module is not method:
                self.handles.append(module.register_forward_hook(partial(self._look, name)))
        self.handles.append(method.register_forward_hook(self._end))

    def on_non_finite(self, run: Run, step: Step) -> None:
        """See `Callback.on_non_finite`."""
        passes = self.steps.get(step.index, _Passes())
        place, name = passes.first_bad()
        found: dict[str, Any] = {"rank": dist.rank(), "place": place, "layer": name, "kind": None, "bad_parameters": []}
        if name is not None:
            module = run.state.method.get_submodule(name)
            found |= {"kind": type(module).__name__, "bad_parameters": _bad_parameters(module)}
        found |= {"index": passes.index(), "bad_images": passes.bad_images()}
        everywhere = dist.gather_objects(found)
        if dist.is_main():
            with run.writing() as folder:
                (folder / FILE).write_text(json.dumps({"step": step.index, "ranks": everywhere}, indent=1))
        run.note(_sentence(step, everywhere))

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        for handle in self.handles:
            handle.remove()

    def _begin(self, method: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        batch = next(value for value in given if isinstance(value, Batch))
        step = next(value for value in given if isinstance(value, Step))
        self.current = self.steps.setdefault(step.index, _Passes())
        self.current.batches.append(batch)
        self.steps = {index: passes for index, passes in self.steps.items() if index > step.index - STEPS}

    def _look(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():  # looked at first: what changes each step would be compiled each step
            return
        if self.current is not None:
            self.current.look(name, output)

    def _end(self, method: nn.Module, args: Any, output: StepOutput) -> None:
        if self.current is not None:
            self.current.look("", output.loss)
            self.current = None


class _Passes:
    """What the forward passes of a step gave, in their order; nothing is read from the device until it is asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.flags: list[Tensor] = []
        self.batches: list[Batch] = []

    def look(self, name: str, output: Any) -> None:
        for value in _tensors(output):
            if value.is_floating_point():
                self.names.append(name)
                wide = torch.promote_types(value.dtype, torch.float32)  # in which a sum of half types does not overflow
                self.flags.append(value.detach().sum(dtype=wide).isfinite())  # one pass, where isfinite().all() is four

    def first_bad(self) -> tuple[int | None, str | None]:
        """Place in the order of the passes, and name."""
        flags = torch.stack(self.flags).tolist() if self.flags else []
        return next(((place, self.names[place]) for place, flag in enumerate(flags) if not flag), (None, None))

    def index(self) -> list[int]:
        return [place for batch in self.batches for place in batch.index.tolist()]

    def bad_images(self) -> list[int]:
        found: list[int] = []
        for batch in self.batches:
            for views in batch.views.values():
                found += batch.index[~views.flatten(1).isfinite().all(dim=1)].tolist()
        return sorted(set(found))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _bad_parameters(module: nn.Module) -> list[str]:
    return [name for name, weight in module.named_parameters(recurse=False) if not dist.local(weight).isfinite().all()]


def _sentence(step: Step, everywhere: list[dict[str, Any]]) -> str:
    lost = [one for one in everywhere if one["place"] is not None]
    if not lost:
        return f"step {step.index}: every layer's output was finite; {FILE} lists the images"
    found = min(lost, key=lambda one: one["place"])  # batch normalisation over all hands it on to the other workers
    where = f"{found['layer']} ({found['kind']})" if found["layer"] else f"{found['kind']} itself, behind its layers,"
    cause = "its parameters are finite"
    if found["bad_parameters"]:
        cause = f"its {', '.join(found['bad_parameters'])} had been destroyed by an update before"
    if found["bad_images"]:
        cause = f"{len(found['bad_images'])} images of the batch were not finite themselves"
    return (
        f"step {step.index}: {where} on worker {found['rank']} was the first to give what is not finite; {cause}; "
        f"{FILE} lists the images"
    )
