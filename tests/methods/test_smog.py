from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.smog import SMoG, memberships, moved_groups
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.methods.properties import exact_steps
from tests.rank_processes import RunRanks

NUM, GROUPS = 6, 4


def setup_of(**fields: Any) -> Setup:
    mine = {"num_groups": GROUPS, "queue_size": 12, "hidden_dim": 16, "output_dim": 5, "reset_every": "3st", **fields}
    words = [f"method.{name}={value}" for name, value in mine.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", f"train.batch_size={NUM}"]
    return Setup.of(load_config("digits/smog", [*small, *words]), 60)


def small_smog(**fields: Any) -> SMoG:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return SMoG(setup, ResNet(setup.config.backbone)).double()


def whole_batch(seed: int = 1) -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def at(index: int) -> Step:
    return Step(index, 100, 10)


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return one @ other / (one.norm() * other.norm())


def nearest(row: Tensor, groups: Tensor) -> int:
    cosines = [cosine(row, group).item() for group in groups]
    return cosines.index(max(cosines))


def moved(groups: Tensor, z: Tensor, momentum: float) -> Tensor:
    belongs = [nearest(row, groups) for row in z]
    parts = []
    for number, group in enumerate(groups):
        own = [row / row.norm() for row, mine in zip(z, belongs, strict=True) if mine == number]
        parts.append(momentum * group + (1 - momentum) * sum(own) / len(own) if own else group)
    return torch.stack(parts)


def test_a_prediction_finds_the_group_of_the_teachers_embedding_among_groups_that_have_moved() -> None:
    method, batch = small_smog(temperature=0.3, group_momentum=0.6), whole_batch()
    first, second = batch.views["global"].unbind(1)
    z = method.projector(method.backbone(first))
    p, told = method.predictor(z), method.teacher(second)
    groups = moved(method.groups, z, 0.6)
    terms, hits = [], 0
    for n in range(NUM):
        scores = torch.stack([cosine(p[n], group) for group in groups]) / 0.3
        own = nearest(told[n], method.groups)
        terms.append((scores.logsumexp(dim=0) - scores[own]).item())
        hits += int(scores.argmax()) == own
    out = method(batch, at(0))
    assert out.loss.item() == pytest.approx(sum(terms) / NUM, rel=1e-9)
    assert out.metrics["group_top1"].item() == pytest.approx(100 * hits / NUM)
    assert out.metrics["groups_used"].item() == len({nearest(row, method.groups) for row in z})
    assert tuple(out.metrics) == SMoG.logged


def test_the_gradient_flows_through_the_groups_that_move() -> None:
    z = torch.randn(NUM, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    groups = torch.randn(GROUPS, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    unit = F.normalize(z, dim=1)
    moved_groups(groups, unit, memberships(unit, groups), 0.9).square().sum().backward()
    assert z.grad is not None
    assert (z.grad.abs().sum(dim=1) > 0).all()


def test_an_update_moves_the_groups_and_the_teacher_and_fills_the_queue() -> None:
    method, batch = small_smog(group_momentum=0.6, momentum=0.5), whole_batch()
    out = method(batch, at(0))
    z, before, slow = out.carry["z"], method.groups.clone(), next(method.teacher.parameters()).clone()
    with torch.no_grad():
        next(method.backbone.parameters()).add_(1.0)
    method.after_update(at(0), batch, out.carry)
    torch.testing.assert_close(method.groups, moved(before, z, 0.6))
    torch.testing.assert_close(next(method.teacher.parameters()), slow + 0.5)
    torch.testing.assert_close(method.queue.keys[:NUM], F.normalize(z, dim=1))


def test_k_means_makes_the_groups_anew_and_the_teacher_a_copy() -> None:
    method = small_smog()
    batches = [whole_batch(seed) for seed in range(3)]
    for index, batch in enumerate(batches):
        before = method.groups.clone()
        method.after_update(at(index), batch, method(batch, at(index)).carry)
        with torch.no_grad():
            next(method.backbone.parameters()).add_(0.1)
    rows, groups = method.queue.keys, method.groups  # two batches of the three are left in the queue
    belongs = torch.tensor([nearest(row, groups) for row in rows])
    for number, group in enumerate(groups):
        centre = rows[belongs == number].mean(dim=0)
        torch.testing.assert_close(group, centre / centre.norm())
    assert not torch.allclose(groups, before)
    ours, theirs = (network.state_dict() for network in (method.teacher.module[1], method.projector))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "running" not in name and "num_b" not in name)


def test_teacher_and_groups_take_no_gradient() -> None:
    method = small_smog()
    method(whole_batch(), at(0)).loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    assert not method.groups.requires_grad


def test_fewer_embeddings_than_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.num_groups is 19, and k-means begins with 18 embeddings"):
        SMoG.check(setup_of(num_groups=19, queue_size=30))
    with pytest.raises(ConfigError, match=r"method\.num_groups is 13, and k-means begins with 12 embeddings"):
        SMoG.check(setup_of(num_groups=13, reset_every="9st"))
    SMoG.check(setup_of(num_groups=19, reset_every="100000st"))


def groups_of_resets() -> dict[str, Tensor]:
    ended: dict[str, Tensor] = exact_steps("smog", "method.reset_every=3st", "method.num_groups=20")["ended"]
    return ended


def test_two_ranks_make_the_groups_and_the_teacher_of_one_process_by_k_means(run_ranks: RunRanks) -> None:
    expected = groups_of_resets()
    for found in run_ranks(2, groups_of_resets):
        for key, value in expected.items():
            scale = max(1.0, value.abs().max().item())
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-9 * scale)
