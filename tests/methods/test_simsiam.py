from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.simsiam import SimSiam
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.build import build_optimizer, lr_at, set_schedules
from raysl.optim.course import peak_lr
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter, GaussianBlur

STEP = Step(0, 10, 5)


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    mine = {"method.hidden_dims": "[16,12]", "method.output_dim": 8, "method.predictor_dim": 4, **fields}
    return Setup.of(
        load_config(
            "digits/simsiam", [*small, "optim.warmup=0ep", *(f"{name}={value}" for name, value in mine.items())]
        ),
        6,
    )


def small_simsiam(**fields: Any) -> SimSiam:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return SimSiam(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def cosine_of(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum() / ((one * one).sum() * (other * other).sum()).sqrt()


def test_loss_is_equation_4() -> None:
    method, batch = small_simsiam(), whole_batch()
    out = method(batch, STEP)
    z = [method.projector(method.backbone(batch.views["global"][:, view])) for view in (0, 1)]
    p = [method.predictor(rows) for rows in z]
    terms = []
    for row in range(6):
        terms.append(-cosine_of(p[0][row], z[1][row]) / 2 - cosine_of(p[1][row], z[0][row]) / 2)
    assert out.loss.item() == pytest.approx(float(sum(terms)) / 6, rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(-out.loss.item())
    assert tuple(out.metrics) == SimSiam.logged


def test_no_gradient_flows_into_what_is_predicted() -> None:
    """Without the stop the projections themselves would be pulled, also where the predictor gives nothing."""
    method, batch = small_simsiam(), whole_batch()
    with torch.no_grad():
        method.predictor[-1].weight.zero_()
    method(batch, STEP).loss.backward()
    for part in (method.backbone, method.projector):
        assert all(parameter.grad is None or parameter.grad.abs().max() < 1e-15 for parameter in part.parameters())
    assert method.predictor[-1].bias.grad.abs().max() > 0


def test_projections_are_normalised_without_a_scale_and_predictions_not_at_all() -> None:
    """Table 3 d: batch normalisation at the predictor's end is unstable."""
    method = small_simsiam()
    kinds = [type(layer).__name__ for layer in method.projector]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert [layer.affine for layer in method.projector if hasattr(layer, "affine")] == [True, True, False]
    assert [type(layer).__name__ for layer in method.predictor] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert method.predictor[0].out_features == 4
    z = method.projector(method.backbone(whole_batch().views["global"][:, 0]))
    torch.testing.assert_close(z.mean(0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_views_are_normalised_one_by_one() -> None:
    method, batch = small_simsiam(), whole_batch()
    shapes: list[int] = []
    method.backbone.bn1.register_forward_pre_hook(lambda _, given: shapes.append(len(given[0])))
    method(batch, STEP)
    assert shapes == [6, 6]


@pytest.mark.parametrize("is_constant", [True, False])
def test_the_predictors_rate_stays_while_that_of_all_else_falls(is_constant: bool) -> None:
    method = small_simsiam(**{"method.constant_predictor_lr": str(is_constant).lower()})
    optim = method.setup.config.optim
    optimizer = build_optimizer(method, optim)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    found: dict[str, list[float]] = {}
    for index in (0, 5, 9):
        set_schedules(optimizer, optim, Step(index, 10, 5), batch_size=6)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.setdefault(names[id(parameter)], []).append(group["lr"])
    assert found.keys() == dict(method.named_parameters()).keys()
    falling = [lr_at(optim, Step(index, 10, 5), 6) for index in (0, 5, 9)]
    assert falling[2] < 0.1 * falling[0]
    for name, rates in found.items():
        stays = is_constant and name.startswith("predictor.")
        assert rates == pytest.approx([peak_lr(optim, 6)] * 3 if stays else falling)


def test_norms_and_biases_of_the_predictor_do_not_decay_where_none_do() -> None:
    decays = [group["weight_decay_scale"] for group in small_simsiam().param_groups(setup_of().config.optim)]
    assert decays == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 3}, "method.views.num is 3; SimSiam compares two views: set it to 2"),
        ({"train.batch_size": 1}, "train.batch_size is 1; the projector normalises over the batch"),
    ],
)
def test_check_refuses_settings_that_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimSiam.check(setup_of(**fields))


def test_views_networks_and_optimizer_are_the_papers() -> None:
    config = load_config("simsiam", ["data.path=/images"])
    SimSiam.check(Setup.of(config, 1_281_167, 1000))
    first, second = config.method.views.recipe().groups["global"]
    assert first == second
    assert first.crop.scale == (0.2, 1.0)
    assert first.transforms[1] == ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    assert first.transforms[3:] == (GaussianBlur(p=0.5, sigma=(0.1, 2.0)),)
    method, optim = config.method, config.optim
    assert (method.hidden_dims, method.output_dim, method.predictor_dim) == ((2048, 2048), 2048, 512)
    assert (optim.name, peak_lr(optim, 512), optim.weight_decay) == ("sgd", pytest.approx(0.1), 1e-4)
    assert (optim.exclude_norm_and_bias, config.backbone.zero_init_residual) == (False, True)
    assert lr_at(optim, Step(0, 1000, 10), 512) == pytest.approx(0.1)  # no warm-up
