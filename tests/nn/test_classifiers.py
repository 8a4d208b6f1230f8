"""What stands in front of a classifier's last layer, and how it starts."""

import pytest
import torch
from torch import nn

from raysl.nn.classifiers import classifier

LAYERS = {
    "linear": ["Linear"],
    "norm_linear": ["BatchNorm1d", "Linear"],
    "mlp": ["Linear", "BatchNorm1d", "ReLU", "Linear"],
    "vit": ["Linear", "Tanh", "Linear"],
    "mobilenet": ["Linear", "Hardswish", "Linear"],
}


@pytest.mark.parametrize("kind", LAYERS)
def test_each_kind_has_the_layers_of_its_paper(kind: str) -> None:
    network = classifier(kind, 16, 3, hidden=5)
    layers = [network] if isinstance(network, nn.Linear) else list(network)
    assert [type(layer).__name__ for layer in layers] == LAYERS[kind]
    assert network(torch.randn(4, 16)).shape == (4, 3)
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == ([16] if "linear" in kind else [16, 5])
    if "linear" not in kind:
        assert next(layer for layer in classifier(kind, 16, 3) if isinstance(layer, nn.Linear)).out_features == 16


def test_normalisation_takes_features_to_mean_0_and_variance_1() -> None:
    network = classifier("norm_linear", 4, 2).train()
    features = 100 + 50 * torch.randn(64, 4)
    normed = (features - features.mean(dim=0)) / features.std(dim=0, correction=0)
    torch.testing.assert_close(network(features), network[1](normed), rtol=1e-4, atol=1e-4)


def test_weights_start_as_published() -> None:
    torch.manual_seed(0)
    first, _, last = classifier("vit", 400, 200, hidden=300)
    assert first.weight.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert last.weight.abs().max() <= 0.04
    assert last.weight.std().item() == pytest.approx(0.0176, rel=0.02)  # 0.02, truncated at two deviations
    narrow, _, wide = classifier("mobilenet", 400, 200, hidden=300)
    assert [layer.weight.std().item() for layer in (narrow, wide)] == pytest.approx([0.01, 0.01], rel=0.02)
    assert all(layer.bias.abs().max() == 0 for layer in (first, last, narrow, wide))
