import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.ressl import ReSSL, WeakAndStrongCrops
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.course import peak_lr
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import Affine, ColorJitter, GaussianBlur, HorizontalFlip
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
SHARES = [4, 2]
"""Rows of the batch on each of two ranks."""


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    sizes = {"method.hidden_dim": 16, "method.output_dim": 8, "method.queue_size": 9}
    words = [f"{name}={value}" for name, value in {**sizes, **fields}.items()]
    return Setup.of(load_config("digits/ressl", [*small, *words]), 6)


def small_ressl(**fields: Any) -> ReSSL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return ReSSL(setup, ResNet(setup.config.backbone)).double()


def whole_batch(num: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {
        name: torch.randn(6, views, 3, 8, 8, dtype=torch.float64, generator=generator)
        for name, views in (("weak", 1), ("global", num))
    }
    return Batch(views, torch.arange(6), torch.full((6,), -1))


def relations(z: Tensor, keys: Tensor, temperature: float) -> list[float]:
    z = z / z.norm()
    weights = [math.exp(float(z @ key) / temperature) for key in keys]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("num", [1, 2])
def test_loss_is_the_cross_entropy_between_the_relations_to_the_queue(num: int) -> None:
    fields = {"method.temperature": 0.3, "method.teacher_temperature": 0.2, "method.views.num": num}
    method, batch = small_ressl(**fields), whole_batch(num)
    with torch.no_grad():
        method.teacher.module[1][-1].weight.mul_(-1)
    out = method(batch, STEP)
    z = method.projector(method.backbone(batch.views["global"].flatten(0, 1))).unflatten(0, (6, num))
    z_teacher = method.teacher.module(batch.views["weak"][:, 0])
    terms, hits = [], 0
    for row in range(6):
        teacher = relations(z_teacher[row], method.queue.keys, 0.2)
        for view in range(num):
            student = relations(z[row, view], method.queue.keys, 0.3)
            terms.append(-sum(p * math.log(q) for p, q in zip(teacher, student, strict=True)))
            hits += teacher.index(max(teacher)) == student.index(max(student))
    assert out.loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-9)
    assert out.metrics["neighbor_top1"].item() == pytest.approx(100 * hits / len(terms))
    assert tuple(out.metrics) == ReSSL.logged
    torch.testing.assert_close(out.carry["z"], F.normalize(z_teacher, dim=1))


def test_gradients_reach_the_student_alone() -> None:
    method = small_ressl()
    method(whole_batch(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}


def test_after_an_update_the_teachers_embeddings_are_queued_and_it_has_followed() -> None:
    method, batch = small_ressl(**{"method.momentum": 0.9}), whole_batch()
    out = method(batch, STEP)
    queue, teacher = method.queue.keys.clone(), copy.deepcopy(method.teacher.module)
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.projector.parameters()):
            parameter.add_(0.1)
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.queue.keys, torch.cat([out.carry["z"], queue[6:]]))
    students = (*method.backbone.parameters(), *method.projector.parameters())
    for now, before, student in zip(method.teacher.parameters(), teacher.parameters(), students, strict=True):
        torch.testing.assert_close(now, 0.9 * before + 0.1 * student)


def shuffling() -> ReSSL:
    return small_ressl(**{"method.teacher_bn": "shuffle", "train.sync_bn": "false"})


def taught_and_statistics() -> tuple[Tensor, Tensor]:
    method, batch = shuffling(), whole_batch()
    first = sum(SHARES[: dist.rank()])
    mine = batch.map(lambda rows: rows[first : first + SHARES[dist.rank()]])
    with dist.planned_rows(SHARES):
        out = method(mine, STEP)
    return out.carry["z"], method.teacher.module[0].state_dict()["bn1.running_mean"]


def test_the_teacher_normalises_a_shuffled_group_on_each_rank_and_its_outputs_come_back_in_order(
    run_ranks: RunRanks,
) -> None:
    images = whole_batch().views["weak"][:, 0]
    order = whole_batch().shared("ressl.shuffle").permutation(6)[0]
    groups = torch.from_numpy(order).split(SHARES)
    assert set(groups[0].tolist()) != {0, 1, 2, 3}
    taught, statistics = torch.empty(6, 8, dtype=torch.float64), []
    for group in groups:
        teacher = shuffling().teacher
        taught[group] = F.normalize(teacher(images[group]), dim=1)
        statistics.append(teacher.module[0].state_dict()["bn1.running_mean"])
    found = run_ranks(2, taught_and_statistics)
    torch.testing.assert_close(torch.cat([part for part, _ in found]), taught, rtol=1e-9, atol=1e-12)
    for (_, mean), expected in zip(found, statistics, strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.1e-4, 1e4])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float) -> None:
    method = small_ressl(**{"method.temperature": temperature, "method.teacher_temperature": 1e-4})
    out = method(whole_batch().map(lambda rows: torch.zeros_like(rows)), STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.backbone.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"method.teacher_temperature": 0.1},
            "teacher_temperature is 0.1 and method.temperature 0.1; .* must be sharper",
        ),
        (
            {"method.teacher_bn": "shuffle", "train.workers": 2},
            "teacher_bn=shuffle is for .* set train.sync_bn=false, or method.teacher_bn",
        ),
        ({"method.queue_size": 5}, "method.queue_size is 5 and train.batch_size 6: embeddings would leave before"),
    ],
)
def test_check_refuses_settings_that_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReSSL.check(setup_of(**fields))


def test_the_teacher_sees_a_crop_and_the_student_all_distortions() -> None:
    recipe = ReSSL.Config().views.recipe()
    (weak,), (strong,) = recipe.groups["weak"], recipe.groups["global"]
    assert (weak.crop, weak.transforms) == (strong.crop, (HorizontalFlip(p=0.5),))
    assert (strong.crop.size, strong.crop.scale) == (224, (0.2, 1.0))
    names = [type(transform).__name__ for transform in strong.transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]
    assert strong.transforms[1] == ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    assert strong.transforms[3] == GaussianBlur(p=0.5, sigma=(0.1, 2.0))
    groups = WeakAndStrongCrops(num=2, affine_p=0.9, weak_affine_p=0.1, degrees=5, solarize_p=0.3).recipe().groups
    assert groups["weak"][0].transforms == (HorizontalFlip(p=0.5), Affine(p=0.1, degrees=5))
    assert len(groups["global"]) == 2


def test_settings_are_the_papers() -> None:
    config = load_config("ressl", ["data.path=/images"])
    ReSSL.check(Setup.of(config, 1_281_167, 1000))
    method, optim = config.method, config.optim
    assert (method.temperature, method.teacher_temperature) == (0.1, 0.04)
    assert (method.queue_size, method.momentum) == (131072, 0.999)
    assert (method.hidden_dim, method.output_dim, method.projector_norm) == (4096, 512, False)
    assert (method.teacher_bn, config.train.sync_bn, optim.exclude_norm_and_bias) == ("shuffle", False, True)
    assert (optim.name, peak_lr(optim, 256), optim.weight_decay) == ("sgd", 0.05, 1e-4)
    assert str(optim.warmup) == "5ep"
