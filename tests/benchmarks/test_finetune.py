"""Fine-tuning: SGD on the whole network, as written out here, from its pre-trained weights and a fresh classifier."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Context, Findings, Side
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.finetune import Finetune
from raysl.benchmarks.training_runs.run import ProbeViews, training_run
from raysl.errors import ConfigError
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.benchmarks.trainings import DIGITS, NUM, checkpoint, context_of, shades, train_here

WHOLE = ProbeViews(min_scale=1.0, flip=0.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that trainings began at, which run in this process."""
    steps: list[int] = []
    monkeypatch.setattr("raysl.runs.run.train", train_here(steps))
    return steps


def measured(context: Context, **fields: Any) -> tuple[dict[str, float], Findings]:
    found = Finetune(Finetune.Config(**fields)).measure(context)
    return {metric.name: metric.value for metric in found.metrics}, found


def pixels(context: Context, split: str) -> tuple[Tensor, Tensor]:
    """Normalised images [N, 3, 16, 16] and labels."""
    rows = np.arange(context.images[split].num_samples)
    found = embed({"": nn.Flatten()}, context.images[split], rows, context.data, torch.device("cpu"))
    return found.features[""].clone().view(-1, 3, 16, 16), torch.from_numpy(found.labels)


def slow_training(network: nn.Module, rates: list[float], images: Tensor, labels: Tensor, epochs: int) -> None:
    """Full-batch SGD with Nesterov's momentum of 0.9 along half a cosine, each weight with its own rate."""
    weights = list(network.parameters())
    velocity = [torch.zeros_like(weight) for weight in weights]
    for step in range(epochs):
        factor = (1 + math.cos(math.pi * step / epochs)) / 2
        grads = torch.autograd.grad(F.cross_entropy(network.train()(images), labels), weights)
        with torch.no_grad():
            for weight, grad, last, rate in zip(weights, grads, velocity, rates, strict=True):
                last.mul_(0.9).add_(grad)
                weight -= rate * factor * (grad + 0.9 * last)


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "decay"), [("trained", None), ("trained", 0.5), ("untrained", None)])
def test_it_is_sgd_on_the_whole_network(tmp_path: Path, started: list[int], side: Side, decay: float | None) -> None:
    context = context_of(checkpoint(tmp_path, *DIGITS), tmp_path, side)
    config = Finetune.Config(epochs=4, batch_size=NUM, lr=0.2, views=WHOLE, head_lr_scale=3.0, layer_decay=decay)
    found = Finetune(config).measure(context)
    run = training_run(context, config, layer_decay=decay, **config.of_method)
    method: Any = TrainState.create(prepare(run).setup).method
    backbone: Any = copy.deepcopy(context.network)
    network = nn.Sequential(backbone, method.classifier)
    last = backbone.num_layers + 1
    factors = [1.0 if decay is None else decay ** (last - backbone.layer_of(n)) for n, _ in backbone.named_parameters()]
    rates = [0.2 * NUM / 256 * factor for factor in [*factors, 3, 3]]
    slow_training(network, rates, *pixels(context, "train"), 4)
    images, labels = pixels(context, "test")
    scores = network.eval()(images).detach()
    assert found.scores is not None
    torch.testing.assert_close(found.scores, scores.softmax(dim=1), rtol=1e-2, atol=1e-3)
    top1 = 100 * (found.scores.argmax(dim=1) == labels).double().mean().item()
    assert found.metrics[0].value == pytest.approx(top1)
    assert [metric.name for metric in found.metrics] == Finetune.metrics(config, 10) == [
        "top1", "top5", "top1_best", "mean_per_class", "macro_f1",
    ]  # fmt: skip
    assert started == [0]


def test_another_optimizer_keeps_the_decay_by_layer(tmp_path: Path) -> None:
    context = context_of(checkpoint(tmp_path, *DIGITS), tmp_path)
    config = Finetune.Config(batch_size=NUM, layer_decay=0.75, settings=("optim=adamw", "optim.lr=1e-3"))
    run = training_run(context, config, layer_decay=config.layer_decay, **config.of_method)
    assert (run.optim.name, run.optim.lr, run.optim.layer_decay) == ("adamw", 1e-3, 0.75)
    config = replace(config, settings=("optim=adamw", "optim.layer_decay=0.5"))
    assert training_run(context, config, layer_decay=config.layer_decay, **config.of_method).optim.layer_decay == 0.5


@pytest.mark.parametrize("side", ["trained", "untrained"])
def test_the_rival_of_a_run_with_published_weights_begins_at_random(tmp_path: Path, side: Side) -> None:
    context = context_of(checkpoint(tmp_path, *DIGITS), tmp_path, side)
    published = TorchvisionModel.Config(model="resnet18", pretrained=True)
    checked = replace(context.checkpoint, config=replace(context.checkpoint.config, backbone=published))
    config = Finetune.Config(batch_size=NUM)
    run = training_run(replace(context, checkpoint=checked), config, **config.of_method)
    assert run.backbone.is_pretrained == (run.method.weights is not None) == (side == "trained")


@pytest.mark.thorough
def test_shades_are_told_apart(tmp_path: Path, started: list[int]) -> None:
    context = context_of(checkpoint(tmp_path, *shades(tmp_path)), tmp_path)
    values, _ = measured(context, epochs=60, batch_size=24, lr=2.0, views=WHOLE)
    assert values == dict.fromkeys(("top1", "top1_best", "mean_per_class", "macro_f1"), 100)


@pytest.mark.thorough
def test_a_network_that_does_not_tell_its_layers_has_no_decay_by_layer(tmp_path: Path, started: list[int]) -> None:
    words = ("backbone=alexnet", "data.image_size=96", "train.batch_size=60", "benchmarks=[]")
    context = context_of(checkpoint(tmp_path, *DIGITS, *words, base=()), tmp_path)
    with pytest.raises(ConfigError, match=r"optim\.layer_decay=0\.7 needs a backbone that tells the layer"):
        measured(context, epochs=1, layer_decay=0.7)
    assert started == []


def test_it_compiles_the_blocks_of_its_network_where_the_run_compiled_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, mode: function)
    context = context_of(checkpoint(tmp_path, *DIGITS, "train.compile=step"), tmp_path)
    config = Finetune.Config()
    assert training_run(context, config, **config.of_method).train.compile is True
