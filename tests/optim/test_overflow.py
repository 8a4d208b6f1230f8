"""A step in fp16 whose gradient overflows is left out on the GPU: torch's scaler hands the flag to the optimizer."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raysl.optim.larc import LARC
from raysl.optim.lars import LARS
from raysl.optim.sgd import SGD


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))]


def built(kind: type, weights: list[nn.Parameter], **settings: object) -> Optimizer:
    made: Optimizer = kind([{"params": weights}], kind.Config(lr=0.1, weight_decay=0.1, **settings))
    return made


def fused_as_on_a_gpu(optimizer: SGD) -> SGD:
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    optimizer.register_step_pre_hook(lambda *_: optimizer._fill_momenta())
    return optimizer


def step(optimizer: Optimizer, found_inf: float | None, grad: float) -> None:
    for group in optimizer.param_groups:
        for number, parameter in enumerate(group["params"], 1):
            parameter.grad = torch.full_like(parameter, grad * number)
    if found_inf is not None:
        optimizer.found_inf = torch.tensor([found_inf])  # type: ignore[attr-defined]
    optimizer.step()


def values(optimizer: Optimizer) -> list[Tensor]:
    weights = [parameter.detach().clone() for group in optimizer.param_groups for parameter in group["params"]]
    return weights + [state.clone() for states in optimizer.state.values() for state in states.values()]


@pytest.mark.parametrize("kind", [LARS, LARC, SGD])
def test_a_step_that_overflows_changes_nothing_and_the_next_is_as_if_it_had_not_been(kind: type) -> None:
    weights = parameters()
    plain, flagged = built(kind, weights), built(kind, copy.deepcopy(weights))
    if isinstance(flagged, SGD):
        fused_as_on_a_gpu(flagged)
    step(flagged, 1.0, float("inf"))
    for grad in (0.5, -2.0):
        step(flagged, 0.0, grad)
        step(plain, None, grad)
    before = values(flagged)
    torch.testing.assert_close(before, values(plain), rtol=1e-5, atol=1e-7)
    step(flagged, 1.0, float("nan"))
    assert all(torch.equal(one, other) for one, other in zip(values(flagged), before, strict=True))


def test_nesterovs_momentum_is_that_of_a_plain_step() -> None:
    weights = parameters()
    plain, flagged = (built(LARC, those, nesterov=True) for those in (weights, copy.deepcopy(weights)))
    for grad in (0.5, -2.0):
        step(flagged, 0.0, grad)
        step(plain, None, grad)
    torch.testing.assert_close(values(flagged), values(plain), rtol=1e-5, atol=1e-7)
