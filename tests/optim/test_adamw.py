import torch
from torch import nn

from raysl.optim.adam import AdamW


def test_adamw_equals_its_definition() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.0, 3.0]], dtype=torch.float64))
    config = AdamW.Config(lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.5)
    optimizer = AdamW([{"params": [weight]}], config)
    expected, mean, square = weight.detach().clone(), torch.zeros(2, 2), torch.zeros(2, 2)
    for step in range(1, 5):
        grad = torch.randn(2, 2, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        weight.grad = grad.clone()
        optimizer.step()
        mean, square = 0.8 * mean + 0.2 * grad, 0.95 * square + 0.05 * grad**2
        update = (mean / (1 - 0.8**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-3)
        expected = expected - 0.1 * 0.5 * expected - 0.1 * update
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


def test_adamw_equals_that_of_torch_with_its_defaults() -> None:
    ours, theirs = (nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    pair = [AdamW([{"params": ours.parameters()}], AdamW.Config()), torch.optim.AdamW(theirs.parameters())]
    for step in range(3):
        for module, optimizer in zip((ours, theirs), pair, strict=True):
            optimizer.zero_grad()
            module(torch.full((2, 5), step + 1.0)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_settings_of_a_group_and_its_decay_hold_for_it_alone() -> None:
    moved, still = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = AdamW([{"params": [moved], "weight_decay": 0.5}, {"params": [still], "weight_decay": 0.0}],
                      AdamW.Config(lr=0.1))  # fmt: skip
    for parameter in (moved, still):
        parameter.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(moved.detach(), torch.full((3,), 0.95))
    assert torch.equal(still.detach(), torch.ones(3))
