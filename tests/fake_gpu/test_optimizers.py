"""LARS, LAMB and LARC neither wait for a GPU nor take more operations for more tensors."""

import pytest
import torch
from torch import nn

from raysl.components import resolve
from tests.fake_gpu.pretended import needs_pretended_gpu, pretended_gpu
from tests.fake_gpu.watch import CUDA, Event

pytestmark = needs_pretended_gpu
SCALED_SGD = ("lars", {}), ("lars", {"separate_norms": True}), ("larc", {}), ("larc", {"clip": True})


def second_step(name: str, num_tensors: int, is_fp16: bool, **settings: object) -> tuple[int, list[Event]]:
    """Kernels and events of an optimizer's second step: the first makes its state."""
    with pretended_gpu() as watch:
        weights = [nn.Parameter(torch.ones(8, 4, device=CUDA)) for _ in range(num_tensors)]
        kind = resolve("optimizer", name)
        optimizer = kind([{"params": weights}], kind.Config(lr=0.1, weight_decay=0.1, **settings))
        if is_fp16:
            optimizer.found_inf = torch.zeros((), device=CUDA)
        for _ in range(2):
            for weight in weights:
                weight.grad = torch.ones(8, 4, device=CUDA)
            watch.clear()
            optimizer.step()
        return sum(watch.kernels.values()), list(watch.events)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "settings", "is_fp16"),
    [
        ("lamb", {}, False),  # torch leaves its steps in fp16 out on the host
        *((*case, is_fp16) for case in SCALED_SGD for is_fp16 in (False, True)),
    ],
)
def test_a_step_takes_as_many_operations_for_any_number_of_tensors(
    name: str, settings: dict[str, object], is_fp16: bool
) -> None:
    few, waits = second_step(name, 3, is_fp16, **settings)
    many, more_waits = second_step(name, 30, is_fp16, **settings)
    assert many == few > 3
    assert waits == more_waits == [], "nor a copy"
