"""A step of any method neither waits for a GPU nor mixes devices; what it copies is pinned, or small."""

import pytest

from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.training import trained
from tests.fake_gpu.watch import SOLVER, TO_GPU_PAGEABLE
from tests.methods.properties import METHODS

pytestmark = needs_pretended_gpu

SOLVE = {"mmcr"}
"""Methods whose loss is a singular value decomposition: torch waits for the solver's report, once a step."""
QUICK = {("simclr", "bf16"), ("npid", "fp16")}
"""What is tried more often; the others are slow together."""


def cases(precisions: tuple[str, ...]) -> list[object]:
    made = []
    for name in METHODS:
        for precision in precisions:
            marks = pytest.mark.thorough if (name, precision) in QUICK else pytest.mark.slow
            made.append(pytest.param(name, precision, id=f"{name}-{precision}", marks=marks))
    return made


@pytest.mark.parametrize(("name", "precision"), cases(("fp32", "bf16", "fp16")))
def test_a_step_waits_for_nothing(name: str, precision: str) -> None:
    seen = trained(name, f"train.precision={precision}")
    assert seen.stay == []
    assert seen.watch.errors == []
    allowed = {SOLVER} if name in SOLVE else set()
    waits = [event for event in seen.in_steps() if event.is_wait or event.kind == TO_GPU_PAGEABLE]
    assert {event.kind for event in waits} == allowed
    assert seen.kernels() > 100
