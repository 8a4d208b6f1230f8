from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from raysl.optim.lars import LARS

CONFIG = LARS.Config(lr=0.5, momentum=0.9, trust_coefficient=0.01, weight_decay=0.1)


def slow_lars(
    weights: list[Tensor],
    grads: list[list[Tensor]],
    lr: float,
    decay: float,
    eta: float,
    momentum: float,
    scaled: bool,
    separate: bool,
) -> None:
    """One parameter at a time, one line of the definition at a time."""
    moving = [torch.zeros_like(weight) for weight in weights]
    for step_grads in grads:
        for place, (weight, grad) in enumerate(zip(weights, step_grads, strict=True)):
            update = grad + decay * weight
            length = grad.norm() + decay * weight.norm() if separate else update.norm()
            if scaled and weight.norm() > 0 and length > 0:
                update = update * (eta * weight.norm() / length)
            moving[place] = momentum * moving[place] + update
            weight -= lr * moving[place]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(4, 3), (2, 3, 3, 3), (5, 5)]]
    return [nn.Parameter(value) for value in [*made, torch.zeros(3, 2, dtype=torch.float64)]]


def gradients(params: list[nn.Parameter], num_steps: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(num_steps)]


@pytest.mark.parametrize(("is_scaled", "is_separate"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_lars_equals_a_slow_loop(is_scaled: bool, is_separate: bool, decay: float) -> None:
    params, expected = parameters(), [parameter.detach().clone() for parameter in parameters()]
    grads = gradients(params, num_steps=4)
    config = replace(CONFIG, separate_norms=is_separate)
    optimizer = LARS([{"params": params, "weight_decay": decay, "layer_scaling": is_scaled}], config)
    for step_grads in grads:
        for parameter, grad in zip(params, step_grads, strict=True):
            parameter.grad = grad.clone()
        optimizer.step()
    slow_lars(expected, grads, 0.5, decay, 0.01, 0.9, is_scaled, is_separate)
    for parameter, weight in zip(params, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-12, atol=1e-15)


def test_a_scaled_update_has_the_length_of_its_share_of_the_weights() -> None:
    (parameter, *_) = parameters()
    before = parameter.detach().clone()
    optimizer = LARS([{"params": [parameter]}], CONFIG)
    parameter.grad = 1e6 * torch.ones_like(parameter)
    optimizer.step()
    assert (parameter - before).norm().item() == pytest.approx(0.5 * 0.01 * before.norm().item())


def test_zero_gradients_and_missing_ones_do_no_harm() -> None:
    still, zero = parameters()[:2]
    expected = zero.detach() * (1 - 0.5 * 0.01)  # the decay alone, at the trusted length
    before = still.detach().clone()
    optimizer = LARS([{"params": [still, zero]}], CONFIG)
    zero.grad = torch.zeros_like(zero)
    optimizer.step()
    assert torch.equal(still, before)
    torch.testing.assert_close(zero.detach(), expected)
    assert torch.equal(zero.grad, torch.zeros_like(zero))


def test_gradients_are_left_as_they_are() -> None:
    params = parameters()
    optimizer = LARS(
        [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0, "layer_scaling": False}], CONFIG
    )
    grads = gradients(params, num_steps=1)[0]
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad.clone()
    optimizer.step()
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(params, grads, strict=True))


def test_a_saved_optimizer_goes_on_bit_for_bit() -> None:
    params, copies = parameters(), parameters()
    grads = gradients(params, num_steps=3)
    first, second = LARS([{"params": params}], CONFIG), LARS([{"params": copies}], CONFIG)
    for step, step_grads in enumerate(grads):
        for parameter, copy, grad in zip(params, copies, step_grads, strict=True):
            parameter.grad, copy.grad = grad.clone(), grad.clone()
        first.step()
        if step == 1:
            second.load_state_dict(deepcopy(first.state_dict()))
            with torch.no_grad():
                for parameter, copy in zip(params, copies, strict=True):
                    copy.copy_(parameter)
        elif step == 2:
            second.step()
    assert all(torch.equal(parameter, copy) for parameter, copy in zip(params, copies, strict=True))
