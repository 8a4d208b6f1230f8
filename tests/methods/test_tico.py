import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.tico import TiCo
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import GaussianBlur, Solarize

STEP = Step(0, 10, 5)


def setup_of(**fields: Any) -> Setup:
    words = [f"{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16", "method.output_dim=5"]
    return Setup.of(load_config("digits/tico", [*small, "train.batch_size=6", *words]), 6)


def small_tico(**fields: Any) -> TiCo:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return TiCo(setup, ResNet(setup.config.backbone)).double()


def whole_batch(seed: int = 1) -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def embedded(network: Any, images: Tensor) -> Tensor:
    return F.normalize(network(images), dim=1)


def slow_loss(z: Tensor, target: Tensor, before: Tensor, beta: float, rho: float) -> Tensor:
    """Algorithm 1, image by image."""
    covariance = beta * before
    for row in z:
        covariance = covariance + (1 - beta) * torch.outer(row, row) / len(z)
    terms = []
    for row, other in zip(z, target, strict=True):
        terms.append(1 - row @ other + rho * (row @ covariance @ row))
    return torch.stack(terms).mean()


def some_covariance() -> Tensor:
    rows = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return rows.T @ rows / 9


def test_loss_and_gradient_are_those_of_the_slow_form() -> None:
    method, batch = small_tico(**{"method.rho": 3.0, "method.beta": 0.6}), whole_batch()
    method.covariance.copy_(some_covariance())
    views = batch.views["global"]
    out = method(batch, STEP)
    z, target = embedded(method.student(), views[:, 0]), embedded(method.teacher, views[:, 1])
    expected = slow_loss(z, target, some_covariance(), beta=0.6, rho=3.0)
    torch.testing.assert_close(out.loss, expected, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == TiCo.logged
    weight = method.projector[-1].weight
    found, slow = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in (out.loss, expected))
    torch.testing.assert_close(found, slow, rtol=1e-9, atol=1e-12)  # also through what the batch adds to C


def test_the_covariance_is_written_after_the_update_alone() -> None:
    method, batch = small_tico(**{"method.beta": 0.6}), whole_batch()
    method.covariance.copy_(some_covariance())
    out = method(batch, STEP)
    assert torch.equal(method.covariance, some_covariance())
    z = out.carry["z"]
    assert not z.requires_grad
    method.after_update(STEP, batch, out.carry)
    expected = 0.6 * some_covariance() + 0.4 * sum(torch.outer(row, row) for row in z) / 6
    torch.testing.assert_close(method.covariance, expected, rtol=1e-9, atol=1e-12)
    assert "covariance" in method.state_dict()


@pytest.mark.parametrize(("index", "momentum"), [(0, 0.9), (5, 0.95)])
def test_the_teacher_follows_more_and_more_slowly(index: int, momentum: float) -> None:
    method, batch = small_tico(**{"method.momentum": 0.9}), whole_batch()
    out = method(batch, STEP)
    before = copy.deepcopy(method.teacher.module)
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.projector.parameters()):
            parameter.add_(0.1)
    method.after_update(Step(index, 10, 5), batch, out.carry)
    students = (*method.backbone.parameters(), *method.projector.parameters())
    for now, was, student in zip(method.teacher.module.parameters(), before.parameters(), students, strict=True):
        torch.testing.assert_close(now, momentum * was + (1 - momentum) * student)


def test_gradients_reach_the_student_alone() -> None:
    method = small_tico()
    method(whole_batch(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}


def test_loss_and_gradient_are_finite_where_all_embeddings_are_one() -> None:
    method, batch = small_tico(), whole_batch()
    out = method(batch.map(lambda rows: torch.zeros_like(rows)), STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_views_and_constants_are_the_papers() -> None:
    method = TiCo.Config()
    first, second = method.views.recipe().groups["global"]
    assert first.transforms[-1] == GaussianBlur(p=1.0, sigma=(0.1, 2.0), kernel_size=None)
    assert second.transforms[-1] == Solarize(p=0.2)
    assert (method.beta, method.rho, method.hidden_dim, method.output_dim) == (0.9, 8.0, 4096, 256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 3}, r"method\.views\.num is 3; TiCo has a view for the student"),
        ({"train.batch_size": 1}, r"train\.batch_size is 1; the projector normalises over the batch"),
    ],
)
def test_check_refuses_other_numbers_of_views_and_single_images(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TiCo.check(setup_of(**fields))
    TiCo.check(setup_of())
