"""A method's whole step as one compiled program: networks, teacher and loss, and their backward pass."""

import torch

from raysl.config.schema import TrainConfig
from raysl.methods.method import Batch, ConfigError, Method, Step, StepOutput

BLOCKS = "set train.compile=true, which compiles the blocks of the backbone"


def check_compiled(train: TrainConfig, method_class: type[Method]) -> None:
    """Refuse settings and methods with which a step cannot be compiled as a whole, on the driver."""
    if train.cuda_graphs and train.compile != "step":
        raise ConfigError("train.cuda_graphs=true records a compiled step; set train.compile=step as well")
    if train.compile != "step":
        return
    name = method_class.__name__
    if method_class.compiles == "no":
        raise ConfigError(
            f"train.compile=step: {name} draws random numbers on the host in its step, which torch's compiler cannot "
            f"follow; {BLOCKS}"
        )
    if train.most_workers > 1:
        raise ConfigError(
            f"train.compile=step is for one worker, and there may be {train.most_workers}: exchanges between workers "
            f"would be compiled too; {BLOCKS}"
        )
    if train.recompute:
        raise ConfigError(
            "train.compile=step decides itself what is computed again; leave out train.recompute, or "
            "set train.compile=true"
        )
    if train.cuda_graphs and method_class.compiles == "step":
        raise ConfigError(
            f"train.cuda_graphs=true: {name} computes with numbers that change with time, for each of which a step "
            "would be recorded anew; set train.cuda_graphs=false"
        )
    if train.cuda_graphs and train.accumulate > 1:
        raise ConfigError(
            f"train.cuda_graphs=true does not go with train.accumulate={train.accumulate}: a recorded part writes its "
            "gradients where those of the part before are; leave one out"
        )


def compile_step(method: Method, with_graphs: bool) -> None:
    """Have the forward pass of a method run its `training_step` compiled; names of weights stay as they are.

    Args:
        with_graphs: record the kernels of a step as CUDA graphs, and replay them.
    """
    # The function of the class, not of the object: a copy of the method then computes with its own weights.
    step = torch.compile(type(method).training_step, mode="reduce-overhead" if with_graphs else None)
    if not with_graphs:
        method.compiled_step = step
        return

    def recorded(method: Method, batch: Batch, point: Step) -> StepOutput:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        out: StepOutput = step(method, batch, point)
        # The next replay writes into the same memory, and the loop reads a step's numbers after it has begun.
        copies = ({name: value.clone() for name, value in values.items()} for values in (out.metrics, out.carry))
        return StepOutput(out.loss.clone(), *copies)

    method.compiled_step = recorded
