import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import info_nce
from raysl.methods.co2 import CO2
from raysl.methods.moco import MoCo
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    sizes = {"hidden_dims": "[16]", "output_dim": 8, "queue_size": 9}
    words = [f"method.{name}={value}" for name, value in {**sizes, **fields}.items()]
    return Setup.of(load_config("digits/co2", [*small, *words]), 6)


def small_co2(**fields: Any) -> CO2:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return CO2(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def test_loss_is_mocos_and_the_weighted_divergence_of_similarities_to_the_queue() -> None:
    method, batch = small_co2(temperature=0.2, consistency=3, consistency_temperature=0.5), whole_batch()
    out = method(batch, STEP)
    queue = method.queue.keys
    q = F.normalize(method.projector(method.backbone(batch.views["global"][:, 0])), dim=1).detach()
    k = F.normalize(method.teacher.module(batch.views["global"][:, 1]), dim=1)
    terms = []
    for query, key in zip(q, k, strict=True):
        weights = [[math.exp(float(row @ other) / 0.5) for other in queue] for row in (query, key)]
        shares = [[weight / sum(row) for weight in row] for row in weights]
        terms.append(sum((p - q) * math.log(p / q) for q, p in zip(*shares, strict=True)) / 2)
    consistency = sum(terms) / 6
    assert out.metrics["consistency"].item() == pytest.approx(consistency, rel=1e-9)
    assert out.loss.item() == pytest.approx(float(info_nce(q, k, queue, 0.2)) + 3 * consistency, rel=1e-9)
    assert tuple(out.metrics) == CO2.logged


def test_without_its_weight_it_is_moco() -> None:
    method, batch = small_co2(consistency=0), whole_batch()
    torch.manual_seed(0)
    setup = setup_of(consistency=0)
    moco = MoCo(setup, ResNet(setup.config.backbone)).double()
    for each in (method, moco):
        each(batch, STEP).loss.backward()
    for (name, found), expected in zip(method.named_parameters(), moco.parameters(), strict=True):
        if not name.startswith("teacher."):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=0)


def test_gradients_reach_the_querys_network_alone() -> None:
    method = small_co2()
    method(whole_batch(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}


def test_settings_are_those_of_moco_v1_and_two_of_the_paper() -> None:
    config, first = (load_config(name, ["data.path=/images"]) for name in ("co2", "moco_v1"))
    CO2.check(Setup.of(config, 1_281_167, 1000))
    assert (config.method.consistency, config.method.consistency_temperature) == (10.0, 0.04)
    assert (config.method.temperature, config.method.hidden_dims) == (0.07, ())
    assert config.method.views == first.method.views == CO2.Config().views
    assert (config.optim, config.train, config.backbone) == (first.optim, first.train, first.backbone)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"views.num": 3}, "method.views.num is 3; MoCo takes a query and a key"),
        ({"queue_size": 5}, "method.queue_size is 5 and train.batch_size 6: keys would leave"),
    ],
)
def test_check_refuses_what_moco_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CO2.check(setup_of(**fields))
