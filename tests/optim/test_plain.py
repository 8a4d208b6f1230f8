"""Optimizers without the wrappers by which torch keeps its compiler away from them."""

from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from raysl.optim.plain import Plain


def stepped(kind: Any, options: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The weights after some steps, and the state, of an optimizer that is stored and restored between them."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(3, 2)) for _ in range(3)]
    made: list[Optimizer] = []
    for _ in range(3):
        optimizer: Optimizer = kind(weights[:2], lr=0.1, **options)
        optimizer.add_param_group({"params": weights[2:], "weight_decay": 0.5})
        if made:
            optimizer.load_state_dict(made[-1].state_dict())
        sum((weight**3).sum() for weight in weights).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        made.append(optimizer)
    assert all(weight.grad is None for weight in weights)
    return [weight.detach() for weight in weights], made[-1].state_dict()


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {"momentum": 0.9, "foreach": True}), (torch.optim.Adam, {}), (torch.optim.AdamW, {})],
)
def test_an_optimizer_steps_as_torchs_own_does(kind: Any, options: dict[str, Any]) -> None:
    plain = type("Plain" + kind.__name__, (Plain, kind), {})
    (weights, state), (others, other) = stepped(plain, options), stepped(kind, options)
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))
    assert state["param_groups"] == other["param_groups"]
    for name, values in state["state"].items():
        assert all(torch.equal(values[key], other["state"][name][key]) for key in values)


def test_a_step_leaves_no_gradient_and_calls_closures_and_hooks() -> None:
    class SGD(Plain, torch.optim.SGD):
        pass

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))

    def closure() -> float:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    assert optimizer.step(closure) == 2.0
    assert calls == ["before"]
    assert weight.requires_grad
    assert weight.is_leaf
    assert torch.is_grad_enabled()
