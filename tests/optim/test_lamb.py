from copy import deepcopy

import pytest
import torch
from timm.optim.lamb import Lamb
from torch import Tensor, nn

from raysl.optim.build import build_optimizer, set_schedules
from raysl.optim.lamb import LAMB
from raysl.schedule import Step
from tests.optim.probe import Probe

CONFIG = LAMB.Config(lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)


def slow_lamb(weights: list[Tensor], grads: list[list[Tensor]], decay: float, is_scaled: bool) -> None:
    """Algorithm 2 of the paper with the settings of `CONFIG`, one number at a time."""
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for t, step_grads in enumerate(grads, 1):
        for weight, grad, m, v in zip(weights, step_grads, means, squares, strict=True):
            update = torch.zeros_like(weight)
            for at in range(weight.numel()):
                g, w = float(grad.view(-1)[at]), float(weight.view(-1)[at])
                m.view(-1)[at] = 0.8 * m.view(-1)[at] + 0.2 * g
                v.view(-1)[at] = 0.95 * v.view(-1)[at] + 0.05 * g * g
                r = (m.view(-1)[at] / (1 - 0.8**t)) / ((v.view(-1)[at] / (1 - 0.95**t)) ** 0.5 + 1e-3)
                update.view(-1)[at] = r + decay * w
            lengths = sum(w * w for w in weight.view(-1).tolist()) ** 0.5, float(update.square().sum()) ** 0.5
            ratio = lengths[0] / lengths[1] if is_scaled and min(lengths) > 0 else 1.0
            weight -= 0.05 * ratio * update


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(4, 3), (2, 1, 3, 3), (5, 2)]]
    return [nn.Parameter(value) for value in [*made, torch.zeros(3, 2, dtype=torch.float64)]]


def gradients(params: list[nn.Parameter], num_steps: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(num_steps)]


def step(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], grads: list[Tensor]) -> None:
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad.clone()
    optimizer.step()


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_lamb_equals_a_slow_loop(is_scaled: bool, decay: float) -> None:
    params, expected = parameters(), [parameter.detach().clone() for parameter in parameters()]
    grads = gradients(params, num_steps=4)
    optimizer = LAMB([{"params": params, "weight_decay": decay, "layer_scaling": is_scaled}], CONFIG)
    for step_grads in grads:
        step(optimizer, params, step_grads)
    slow_lamb(expected, grads, decay, is_scaled)
    for parameter, weight in zip(params, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-12, atol=1e-15)


def test_lamb_equals_that_of_timm_which_leaves_tensors_without_decay_unscaled() -> None:
    ours, theirs = parameters(), parameters()
    scaled, plain = slice(0, 2), slice(2, 4)
    groups = [{"params": ours[scaled]}, {"params": ours[plain], "weight_decay": 0.0, "layer_scaling": False}]
    pair = (
        LAMB(groups, CONFIG),
        Lamb(
            [{"params": theirs[scaled]}, {"params": theirs[plain], "weight_decay": 0.0}],
            lr=CONFIG.lr,
            betas=CONFIG.betas,
            eps=CONFIG.eps,
            weight_decay=CONFIG.weight_decay,
            max_grad_norm=None,
        ),
    )
    for step_grads in gradients(ours, num_steps=10):
        for optimizer, params in zip(pair, (ours, theirs), strict=True):
            step(optimizer, params, step_grads)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-12, atol=1e-15)


def test_a_tensor_moves_by_the_learning_rates_share_of_its_norm() -> None:
    params = parameters()[:3]
    before = [parameter.detach().clone() for parameter in params]
    step(LAMB([{"params": params}], CONFIG), params, [1e6 * grad for grad in gradients(params, 1)[0]])
    for parameter, weight in zip(params, before, strict=True):
        assert (parameter - weight).norm().item() == pytest.approx(0.05 * weight.norm().item())


def test_zero_gradients_and_missing_ones_do_no_harm() -> None:
    still, decayed = parameters()[:2]
    before, expected = still.detach().clone(), decayed.detach() * (1 - 0.05)  # the decay alone, at the norm of weights
    optimizer = LAMB([{"params": [still, decayed]}], CONFIG)
    decayed.grad = torch.zeros_like(decayed)
    optimizer.step()
    assert torch.equal(still, before)
    assert still not in optimizer.state
    torch.testing.assert_close(decayed.detach(), expected)


def test_gradients_are_left_as_they_are() -> None:
    params = parameters()
    (grads,) = gradients(params, num_steps=1)
    step(LAMB([{"params": params}], CONFIG), params, grads)
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(params, grads, strict=True))


def test_a_saved_optimizer_goes_on_bit_for_bit() -> None:
    params, copies = parameters(), parameters()
    first, second = LAMB([{"params": params}], CONFIG), LAMB([{"params": copies}], CONFIG)
    *before, last = gradients(params, num_steps=3)
    for grads in before:
        step(first, params, grads)
    second.load_state_dict(deepcopy(first.state_dict()))
    with torch.no_grad():
        for parameter, copy in zip(params, copies, strict=True):
            copy.copy_(parameter)
    step(first, params, last)
    step(second, copies, last)
    assert all(torch.equal(parameter, copy) for parameter, copy in zip(params, copies, strict=True))


def test_norms_and_biases_are_neither_decayed_nor_scaled() -> None:
    optimizer = build_optimizer(Probe(), CONFIG)
    assert isinstance(optimizer, LAMB)
    set_schedules(optimizer, CONFIG, Step(0, 20, 5), batch_size=256)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert [group["layer_scaling"] for group in optimizer.param_groups] == [True, False]


def test_a_closure_is_called_with_gradients_and_its_result_returned() -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LAMB([{"params": [weight]}], LAMB.Config(lr=0.1, weight_decay=0.0))

    def closure() -> float:
        loss = weight[1] ** 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    assert optimizer.step(closure) == 16.0
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 3.5]))
