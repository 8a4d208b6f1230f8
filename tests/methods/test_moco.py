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
from raysl.methods.moco import MoCo
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter, GaussianBlur
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
SHARES = [4, 3]


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=7"]
    mine = {"method.hidden_dims": "[16]", "method.output_dim": 8, "method.queue_size": 11, **fields}
    words = [f"{name}={value}" for name, value in mine.items()]
    return Setup.of(load_config("digits/moco", [*small, *words]), 7)


def small_moco(**fields: Any) -> MoCo:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return MoCo(setup, ResNet(setup.config.backbone)).double()


def shuffling() -> MoCo:
    return small_moco(**{"method.key_bn": "shuffle", "train.sync_bn": "false"})


def whole_batch(seed: int = 1) -> Batch:
    images = torch.randn(7, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Batch({"global": images}, torch.arange(7), torch.full((7,), -1))


def embedded(network: Any, projector: Any, images: Tensor) -> Tensor:
    return F.normalize(projector(network(images)), dim=1)


def test_loss_is_the_log_likelihood_of_a_querys_own_key_among_the_queue() -> None:
    method, batch = small_moco(**{"method.temperature": 0.3}), whole_batch()
    out = method(batch, STEP)
    q = embedded(method.backbone, method.projector, batch.views["global"][:, 0])
    k = embedded(*method.teacher.module, batch.views["global"][:, 1])
    terms, hits = [], 0
    for query, key in zip(q, k, strict=True):
        own, others = (query @ key).item(), [(query @ other).item() for other in method.queue.keys]
        weights = [math.exp(cosine / 0.3) for cosine in (own, *others)]
        terms.append(-math.log(weights[0] / sum(weights)))
        hits += own > max(others)
    assert out.loss.item() == pytest.approx(sum(terms) / 7, rel=1e-9)
    assert out.metrics["contrastive_top1"].item() == pytest.approx(100 * hits / 7)
    assert tuple(out.metrics) == MoCo.logged
    torch.testing.assert_close(out.carry["keys"], k, rtol=1e-9, atol=0)


def test_gradients_reach_the_querys_network_alone() -> None:
    method = small_moco()
    method(whole_batch(), STEP).loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}


def test_after_an_update_the_keys_are_queued_and_the_teacher_has_followed() -> None:
    method, batch = small_moco(**{"method.momentum": 0.9}), whole_batch()
    out = method(batch, STEP)
    queue, teacher = method.queue.keys.clone(), copy.deepcopy(method.teacher.module)
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.projector.parameters()):
            parameter.add_(0.1)
    assert torch.equal(method.queue.keys, queue)
    for _ in range(2):  # 14 keys into 11 places
        method.after_update(STEP, batch, out.carry)
    keys = out.carry["keys"]
    torch.testing.assert_close(method.queue.keys, torch.cat([keys[4:7], keys[3:7], keys[0:4]]))
    pairs = zip(method.teacher.module.parameters(), teacher.parameters(), strict=True)
    students = (*method.backbone.parameters(), *method.projector.parameters())
    for (now, before), student in zip(pairs, students, strict=True):
        torch.testing.assert_close(now, 0.81 * before + 0.19 * student)


def test_keys_are_those_of_a_teacher_that_follows_before_each_steps_keys() -> None:
    """The papers' code averages at the start of a step, with the weights that the last update left."""
    method = small_moco(**{"method.momentum": 0.6})
    student = (*method.backbone.parameters(), *method.projector.parameters())
    optimizer = torch.optim.SGD(student, lr=0.5)
    theirs = copy.deepcopy(method.teacher.module)
    for number in range(4):
        batch, step = whole_batch(seed=number), Step(number, 10, 5)
        for key, query in zip(theirs.parameters(), student, strict=True):
            key.mul_(0.6).add_(query.detach(), alpha=0.4)
        expected = F.normalize(theirs(batch.views["global"][:, 1]), dim=1)
        out = method(batch, step)
        torch.testing.assert_close(out.carry["keys"], expected, rtol=1e-9, atol=1e-12)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        method.after_update(step, batch, out.carry)


def keys_and_statistics() -> tuple[Tensor, Tensor]:
    method, batch = shuffling(), whole_batch()
    first = sum(SHARES[: dist.rank()])
    mine = batch.map(lambda rows: rows[first : first + SHARES[dist.rank()]])
    with dist.planned_rows(SHARES):
        out = method(mine, STEP)
    return out.carry["keys"], method.teacher.module[0].state_dict()["bn1.running_mean"]


def test_shuffled_keys_come_back_in_order_with_the_statistics_of_shuffled_groups(run_ranks: RunRanks) -> None:
    images = whole_batch().views["global"][:, 1]
    order = whole_batch().shared("moco.shuffle").permutation(7)[0]
    groups = torch.from_numpy(order).split(SHARES)
    assert set(groups[0].tolist()) != {0, 1, 2, 3}
    keys, statistics = torch.empty(7, 8, dtype=torch.float64), []
    for group in groups:
        encoder = shuffling().teacher.module
        keys[group] = embedded(*encoder, images[group]).detach()
        statistics.append(encoder[0].state_dict()["bn1.running_mean"])
    found = run_ranks(2, keys_and_statistics)
    torch.testing.assert_close(torch.cat([part for part, _ in found]), keys, rtol=1e-9, atol=1e-12)
    for (_, mean), expected in zip(found, statistics, strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-12)


def test_evaluated_keys_depend_on_their_own_image_alone() -> None:
    method, batch = small_moco(**{"method.key_bn": "eval"}), whole_batch()
    one = batch.map(lambda rows: rows[:2])
    together, apart = method(batch, STEP).carry["keys"][:2], method(one, STEP).carry["keys"]
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-12)
    method.after_update(STEP, batch, {"keys": together})
    pairs = zip(method.teacher.module[0].buffers(), method.backbone.buffers(), strict=True)
    assert all(torch.equal(teacher, student) for teacher, student in pairs)


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float, is_collapsed: bool) -> None:
    method, batch = small_moco(**{"method.temperature": temperature}), whole_batch()
    if is_collapsed:
        batch = batch.map(lambda rows: torch.zeros_like(rows))
    out = method(batch, STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.backbone.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 3}, "method.views.num is 3; MoCo takes a query and a key"),
        ({"method.queue_size": 6}, "method.queue_size is 6 and train.batch_size 7: keys would leave"),
        (
            {"method.key_bn": "shuffle", "train.workers": 2},
            "key_bn=shuffle is for .* set train.sync_bn=false, or method.key_bn=sync",
        ),
        ({"train.sync_bn": "false"}, "key_bn=sync takes .* set train.sync_bn=true, or method.key_bn=shuffle"),
    ],
)
def test_check_refuses_settings_that_contradict_each_other(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoCo.check(setup_of(**fields))


def test_shuffled_keys_go_with_synchronised_statistics_on_one_worker_whose_rows_are_all() -> None:
    MoCo.check(setup_of(**{"method.key_bn": "shuffle"}))


def test_check_accepts_the_published_settings() -> None:
    for name in ("moco", "moco_v1"):
        MoCo.check(Setup.of(load_config(name, ["data.path=/images"]), 1_281_167, 1000))


def test_views_and_networks_are_the_papers() -> None:
    second = load_config("moco", ["data.path=/images"]).method
    query, key = second.views.recipe().groups["global"]
    assert query == key
    assert (query.crop.size, query.crop.scale) == (224, (0.08, 1.0))
    names = [type(transform).__name__ for transform in query.transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]
    assert query.transforms[1] == ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    assert query.transforms[3] == GaussianBlur(p=0.5, sigma=(0.1, 2.0), kernel_size=None)
    assert (second.temperature, second.hidden_dims, second.key_bn) == (0.2, (2048,), "shuffle")
    first = load_config("moco_v1", ["data.path=/images"]).method
    query, _ = first.views.recipe().groups["global"]
    assert query.crop.scale == (0.2, 1.0)
    assert [type(transform).__name__ for transform in query.transforms] == [
        "HorizontalFlip",
        "Grayscale",
        "ColorJitter",
    ]
    assert query.transforms[2] == ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4)
    assert (first.temperature, first.hidden_dims) == (0.07, ())
