"""Runs whose weights, or whose optimizer's state, are spread over ranks: for tests of `train.parallel`."""

from pathlib import Path

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.nn.adapters import merge_adapters
from raysl.train import LocalReporter, fit
from raysl.train.prepare import Prepared
from raysl.train.state import TrainState
from tests.methods.properties import InFloat64


def trained(run: Prepared, folder: Path, start: Path | None = None) -> TrainState:
    """The state at the end of a run in float64, which may go on from a checkpoint; the last one is in the folder."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        state = TrainState.create(run.setup, classes=run.classes)
        if start is not None:
            state.load(start)
        reporter = LocalReporter(folder, keep=100)
        fit(state, dist.data_parallel(state.method), run.setup.plan, InFloat64(run), reporter=reporter)
        assert (
            merge_adapters(state.exported().state_dict()).keys()
            == merge_adapters(state.method.export().state_dict()).keys()
        )
    finally:
        torch.set_default_dtype(torch.float32)
    return state


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """All that a checkpoint keeps of method and optimizer, whole, by name; on the main rank."""
    tensors = state.tensors()
    found = {f"method.{name}": value for name, value in tensors["method"].items()}
    for number, values in tensors["optimizer"].get("state", {}).items():
        found |= {f"optimizer.{number}.{name}": value for name, value in values.items() if torch.is_tensor(value)}
    return {name: value.detach().clone() for name, value in found.items()} if dist.is_main() else {}
