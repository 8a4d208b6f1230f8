from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.methods.swav_momentum import SwAVMomentum
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from tests.methods.test_swav import at, balanced, unit_embeddings, updated, whole_batch

SMALL = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "method.hidden_dim=16",
    "method.output_dim=8",
    "method.prototypes=[5,3]",
    "method.queue_length=0",
    "method.queue_from=0st",
    "method.freeze_prototypes=0st",
    "method.eval_from=0st",
    "train.batch_size=6",
)


def small_method(**fields: Any) -> SwAVMomentum:
    torch.manual_seed(0)
    words = [f"method.{name}={value}" for name, value in fields.items()]
    setup = Setup.of(load_config("digits/swav_momentum", [*SMALL, *words]), 12)
    return SwAVMomentum(setup, ResNet(setup.config.backbone)).double()


def stirred(**fields: Any) -> SwAVMomentum:
    """A method whose teacher is another network than its student."""
    method = small_method(**fields)
    torch.manual_seed(3)
    for parameter in (*method.teacher.parameters(), *method.teacher_prototypes.parameters()):
        parameter.data += 0.1 * torch.randn_like(parameter)
    return method


def teacher_embeddings(method: SwAVMomentum, batch: Batch) -> Tensor:
    """[2, B, P] of the large views."""
    teacher = method.teacher.module
    rows = [F.normalize(teacher(batch.views["global"][:, view]), dim=1) for view in range(2)]
    return torch.stack(rows).detach()


def expected_loss(method: SwAVMomentum, z: Tensor, k: Tensor, queue: Tensor | None = None) -> Tensor:
    """SwAV's equation 6 term by term, codes from the teacher's k [2, B, P] and its prototypes."""
    heads = []
    assert isinstance(method.teacher_prototypes.module, nn.ModuleList)
    for own, slow in zip(method.prototypes, method.teacher_prototypes.module, strict=True):
        terms = []
        for assigned in (0, 1):
            rows = k[assigned] if queue is None else torch.cat([queue[:, assigned], k[assigned]])
            codes = balanced((rows @ slow.weight.T).detach())[-6:]
            for view in range(len(z)):
                for image in range(6 if view != assigned else 0):
                    p = torch.softmax(z[view, image] @ own.weight.T / 0.1, dim=0)
                    terms.append(-(codes[image] * p.log()).sum())
        heads.append(sum(terms) / len(terms))
    return sum(heads) / len(heads)


def test_every_other_view_predicts_the_codes_of_the_teachers_embeddings_and_prototypes() -> None:
    method, batch = stirred(), whole_batch()
    z = unit_embeddings(method, batch)
    out = method(batch, at(0))
    k = teacher_embeddings(method, batch)
    torch.testing.assert_close(out.loss, expected_loss(method, z, k), rtol=1e-9, atol=0)
    assert (out.loss - expected_loss(method, z, z[:2].detach())).abs() > 1e-3
    torch.testing.assert_close(out.carry["z"], k.transpose(0, 1), rtol=0, atol=1e-12)
    out.loss.backward()
    slow = [*method.teacher.parameters(), *method.teacher_prototypes.parameters()]
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in slow)


def test_the_queue_holds_the_teachers_embeddings_and_is_scored_by_its_prototypes() -> None:
    method, batch = stirred(queue_length=6), whole_batch()
    k = teacher_embeddings(method.eval(), batch)
    updated(method.train(), at(0), batch)
    assert method.queue is not None
    torch.testing.assert_close(method.queue.keys, k.transpose(0, 1), rtol=0, atol=1e-12)
    other = whole_batch(2)
    z, k = unit_embeddings(method, other), teacher_embeddings(method.eval(), other)
    expected = expected_loss(method, z, k, method.queue.keys)
    torch.testing.assert_close(method.train()(other, at(1)).loss, expected, rtol=1e-9, atol=0)


def test_the_teacher_normalises_by_running_statistics_from_a_point_on() -> None:
    method, batch = small_method(eval_from="2st"), whole_batch()
    seen = []
    for index in range(3):
        method(batch, at(index))
        seen.append(method.teacher.training)
    assert seen == [True, True, False]


def test_after_an_update_the_teacher_follows_by_the_momentum_with_the_students_statistics() -> None:
    method, batch = stirred(momentum=0.9), whole_batch()
    before = {name: value.clone() for name, value in method.teacher.named_parameters()}
    slow = [value.clone() for value in method.teacher_prototypes.parameters()]
    updated(method, at(0), batch)
    student = {f"module.{name}": value for name, value in method.student().state_dict().items()}
    for name, value in method.teacher.named_parameters():
        torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * student[name], rtol=1e-9, atol=1e-12)
    for name, value in method.teacher.named_buffers():
        assert torch.equal(value, student[name])
    for value, old, own in zip(method.teacher_prototypes.parameters(), slow, method.prototypes, strict=True):
        expected = F.normalize(0.9 * old + 0.1 * own.weight, dim=1)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


def test_settings_are_vissls_and_benchmarks_see_the_network_that_trains() -> None:
    config = SwAVMomentum.Config()
    assert (config.momentum, config.prototypes, config.temperature, config.epsilon) == (0.99, (3000,), 0.1, 0.05)
    method = small_method()
    assert method.export() is method.backbone


@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
def test_loss_and_gradients_are_finite_at_extremes(epsilon: float) -> None:
    method = small_method(epsilon=epsilon)
    out = method(whole_batch(), at(0))
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)
