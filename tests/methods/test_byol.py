import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.byol import BYOL
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.course import peak_lr
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter, GaussianBlur, Solarize

STEP = Step(0, 10, 5)


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    mine = {"method.hidden_dim": 16, "method.output_dim": 8, **fields}
    return Setup.of(
        load_config(
            "digits/byol", [*small, "method.momentum=0.97", *(f"{name}={value}" for name, value in mine.items())]
        ),
        6,
    )


def small_byol(**fields: Any) -> BYOL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return BYOL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def moved(method: BYOL) -> BYOL:
    """The method with a target that is not the student."""
    with torch.no_grad():
        for number, parameter in enumerate(method.teacher.parameters()):
            parameter.add_(0.1 * math.sin(number))
    return method


def unit(row: Tensor) -> list[float]:
    length = math.sqrt(sum(value * value for value in row.tolist()))
    return [value / length for value in row.tolist()]


def test_loss_is_the_squared_distance_of_unit_vectors_in_both_directions() -> None:
    method, batch = moved(small_byol()), whole_batch()
    out = method(batch, STEP)
    views = batch.views["global"]
    terms, cosines = [], []
    for here, there in ((0, 1), (1, 0)):
        predictions = method.predictor(method.projector(method.backbone(views[:, here])))
        targets = method.teacher.module(views[:, there])
        for p, target in zip(predictions, targets, strict=True):
            pairs = list(zip(unit(p), unit(target), strict=True))
            terms.append(sum((a - b) ** 2 for a, b in pairs))
            cosines.append(sum(a * b for a, b in pairs))
    assert out.loss.item() == pytest.approx(sum(terms) / 6, rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(sum(cosines) / 12, rel=1e-9)
    assert tuple(out.metrics) == BYOL.logged


def test_gradients_reach_the_online_network_alone() -> None:
    method = small_byol()
    method(whole_batch(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}
    assert {name.split(".")[0] for name in trained} == {"backbone", "projector", "predictor"}


def test_the_target_follows_after_an_update_ever_more_slowly() -> None:
    """tau = 1 - (1 - 0.9) (cos(pi k / K) + 1) / 2, with the weights that the update left."""
    method, batch = small_byol(**{"method.momentum": 0.9}), whole_batch()
    student = (*method.backbone.parameters(), *method.projector.parameters())
    for index in (0, 3, 10):
        before = copy.deepcopy(method.teacher.module)
        with torch.no_grad():
            for parameter in student:
                parameter.add_(0.1)
        method.after_update(Step(index, 10, 5), batch, {})
        tau = 1 - 0.1 * (math.cos(math.pi * index / 10) + 1) / 2
        pairs = zip(method.teacher.parameters(), before.parameters(), student, strict=True)
        for now, old, new in pairs:
            torch.testing.assert_close(now, tau * old + (1 - tau) * new, rtol=1e-12, atol=1e-14)


def test_the_target_normalises_with_statistics_of_its_own() -> None:
    method, batch = small_byol(), whole_batch()
    method.backbone.bn1.running_mean.fill_(5.0)
    method.after_update(STEP, batch, {})
    assert not torch.equal(method.teacher.module[0].state_dict()["bn1.running_mean"], method.backbone.bn1.running_mean)
    before = method.teacher.module[0].state_dict()["bn1.running_mean"].clone()
    method(batch, STEP)
    assert not torch.equal(method.teacher.module[0].state_dict()["bn1.running_mean"], before)


def test_views_are_normalised_one_by_one() -> None:
    """The views differ by design, and the paper's code passes them one after the other: no statistics are shared."""
    method, batch = small_byol(), whole_batch()
    batch.views["global"][:, 1] *= 10
    shapes: list[int] = []
    method.backbone.bn1.register_forward_pre_hook(lambda _, given: shapes.append(len(given[0])))
    method(batch, STEP)
    assert shapes == [6, 6]


def test_a_collapsed_network_is_told() -> None:
    method = small_byol()
    for layer in (method.projector, method.teacher.module[1]):
        torch.nn.init.zeros_(layer[-1].weight)
    out = method(whole_batch(), STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert out.metrics["embedding_std"] < 1e-6
    assert all(p.grad.isfinite().all() for p in method.backbone.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 3}, "method.views.num is 3; BYOL predicts one view from another: set it to 2"),
        ({"train.batch_size": 1}, "train.batch_size is 1; the projector normalises over the batch"),
        ({"method.final_momentum": 0.5}, "final_momentum is 0.5 and method.momentum 0.97: the target must slow down"),
    ],
)
def test_check_refuses_settings_that_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BYOL.check(setup_of(**fields))


@pytest.mark.parametrize("last_bias", [False, True])
def test_the_last_layers_have_a_bias_where_it_is_asked_for(last_bias: bool) -> None:
    method = small_byol(**{"method.last_bias": last_bias})
    for network in (method.projector, method.predictor, method.teacher.module[1]):
        assert (network[-1].bias is not None) == last_bias


def test_views_networks_and_optimizer_are_the_papers() -> None:
    config = load_config("byol", ["data.path=/images"])
    setup = Setup.of(config, 1_281_167, 1000)
    BYOL.check(setup)
    first, second = config.method.views.recipe().groups["global"]
    jitter = ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, arithmetic="tensorflow")
    assert [view.transforms[1] for view in (first, second)] == [jitter, jitter]
    assert first.transforms[3:] == (GaussianBlur(p=1.0, sigma=(0.1, 2.0)),)
    assert second.transforms[3:] == (GaussianBlur(p=0.1, sigma=(0.1, 2.0)), Solarize(p=0.2))
    assert (config.method.hidden_dim, config.method.output_dim) == (4096, 256)
    assert (config.method.momentum, config.method.final_momentum) == (0.996, 1.0)
    assert [view.crop.interpolation for view in (first, second)] == ["bicubic", "bicubic"]
    assert config.backbone.zero_init_residual
    optim = config.optim
    assert (optim.name, peak_lr(optim, 4096), optim.weight_decay) == ("lars", pytest.approx(3.2), 1.5e-6)
    assert (str(optim.warmup), optim.exclude_norm_and_bias) == ("10ep", True)
