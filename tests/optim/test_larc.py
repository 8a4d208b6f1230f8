from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl.optim.larc import LARC


def slow_larc(
    weights: list[Tensor], grads: list[list[Tensor]], config: LARC.Config, decay: float, is_scaled: bool
) -> None:
    """One parameter at a time, one line of the definition at a time."""
    moving = [torch.zeros_like(weight) for weight in weights]
    for step_grads in grads:
        for place, (weight, grad) in enumerate(zip(weights, step_grads, strict=True)):
            weight_norm, grad_norm = weight.norm().item(), grad.norm().item()
            if not is_scaled:
                update = grad + decay * weight
            elif weight_norm == 0 or grad_norm == 0:
                update = grad
            else:
                rate = config.trust_coefficient * weight_norm / (grad_norm + decay * weight_norm + config.eps)
                if config.clip:
                    rate = min(rate / config.lr, 1)
                update = (grad + decay * weight) * rate
            moving[place] = config.momentum * moving[place] + update
            step = update + config.momentum * moving[place] if config.nesterov else moving[place]
            weight -= config.lr * step


def parameters() -> list[nn.Parameter]:
    """Weights, a scale of ones, and a bias of zeros, whose first update has neither decay nor scale."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(4, 3), (2, 3, 3, 3), (5, 5)]]
    made += [torch.ones(6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    return [nn.Parameter(value) for value in made]


def gradients(params: list[nn.Parameter], num_steps: int) -> list[list[Tensor]]:
    """The third of the parameters has a gradient of 0 at the second step."""
    generator = torch.Generator().manual_seed(1)
    made = [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(num_steps)]
    made[1][2].zero_()
    return made


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("decay", [0.1, 0.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip": True, "lr": 0.002},
        {"clip": True, "trust_coefficient": 50.0},
        {"nesterov": True, "eps": 0.5},
        {"momentum": 0.0},
    ],
    ids=str,
)
def test_larc_equals_a_slow_loop(settings: dict[str, Any], decay: float, is_scaled: bool) -> None:
    config = LARC.Config(**{"lr": 0.5, "trust_coefficient": 0.01, **settings})
    params, expected = parameters(), [parameter.detach().clone() for parameter in parameters()]
    grads = gradients(params, num_steps=4)
    optimizer = LARC([{"params": params, "weight_decay": decay, "layer_scaling": is_scaled}], config)
    for step_grads in grads:
        for parameter, grad in zip(params, step_grads, strict=True):
            parameter.grad = grad.clone()
        optimizer.step()
        assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(params, step_grads, strict=True))
    slow_larc(expected, grads, config, decay, is_scaled)
    for parameter, weight in zip(params, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-12, atol=1e-15)


def test_a_weight_or_gradient_of_zero_gets_neither_decay_nor_scale() -> None:
    weight, bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
    optimizer = LARC([{"params": [weight, bias]}], LARC.Config(lr=0.5, weight_decay=0.1))
    weight.grad, bias.grad = torch.zeros(4), torch.ones(4)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4))
    assert torch.equal(bias.detach(), torch.full((4,), -0.5))


def test_decay_is_adapted_with_the_gradient() -> None:
    weight = nn.Parameter(torch.full((4,), 2.0, dtype=torch.float64))  # |w| = 4
    optimizer = LARC([{"params": [weight]}], LARC.Config(lr=1.0, weight_decay=0.5, trust_coefficient=0.1, eps=0.0))
    weight.grad = torch.full((4,), 3.0, dtype=torch.float64)  # |g| = 6: a = 0.1 * 4 / (6 + 2), d = a * (3 + 1)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), 1.8, dtype=torch.float64))


def test_clipping_without_a_learning_rate_moves_nothing() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = LARC([{"params": [weight]}], LARC.Config(lr=0.0, clip=True))
    weight.grad = torch.ones(4)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4))


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nesterov needs a momentum; set optim\.momentum=0\.9"):
        LARC.Config(momentum=0.0, nesterov=True)
