from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.methods.swav import SwAV
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter

NUM_VIEWS = 4  # two large ones and two small ones
SMALL = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "method.hidden_dim=16",
    "method.output_dim=8",
    "method.prototypes=[5,3]",
    "method.queue_length=0",
    "method.queue_from=0st",
    "method.freeze_prototypes=0st",
    "train.batch_size=6",
)


def setup_of(num_samples: int = 12, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/swav", [*SMALL, *words]), num_samples)


def small_swav(**fields: Any) -> SwAV:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return SwAV(setup, ResNet(setup.config.backbone)).double()


def whole_batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = {
        "global": torch.randn(6, 2, 3, 16, 16, dtype=torch.float64, generator=generator),
        "local": torch.randn(6, 2, 3, 12, 12, dtype=torch.float64, generator=generator),
    }
    return Batch(views, torch.arange(6), torch.full((6,), -1))


def at(index: int) -> Step:
    return Step(index, 100, 10)


def unit_embeddings(method: SwAV, batch: Batch) -> Tensor:
    """[V, B, P], each size through the backbone by itself, all of them through the projector together."""
    h = [method.backbone(batch.views[group].flatten(0, 1)).unflatten(0, (6, 2)) for group in ("global", "local")]
    z = method.projector(torch.cat(h, dim=1).flatten(0, 1)).unflatten(0, (6, NUM_VIEWS))
    return F.normalize(z, dim=-1).transpose(0, 1)


def balanced(scores: Tensor) -> Tensor:
    """Sinkhorn-Knopp by hand: codes of rows [n, K], epsilon 0.05, three rounds."""
    codes = (scores / 0.05).exp()
    for _ in range(3):
        for k in range(codes.shape[1]):
            codes[:, k] /= codes[:, k].sum() * codes.shape[1]
        for n in range(len(codes)):
            codes[n] /= codes[n].sum() * len(codes)
    return codes * len(codes)


def expected_loss(method: SwAV, z: Tensor, queue: Tensor | None = None) -> Tensor:
    """Equation 6 term by term; `queue` [Q, A, P] is assigned with the batch."""
    heads = []
    for prototypes in method.prototypes:
        terms = []
        for assigned in (0, 1):
            rows = z[assigned] if queue is None else torch.cat([queue[:, assigned], z[assigned]])
            codes = balanced((rows @ prototypes.weight.T).detach())[-6:]
            for view in range(NUM_VIEWS):
                if view == assigned:
                    continue
                for image in range(6):
                    p = torch.softmax(z[view, image] @ prototypes.weight.T / 0.1, dim=0)
                    terms.append(-(codes[image] * p.log()).sum())
        heads.append(sum(terms) / len(terms))
    return sum(heads) / len(heads)


def updated(method: SwAV, step: Step, batch: Batch, lr: float = 0.1) -> StepOutput:
    """One step as the loop takes it, with decay and momentum."""
    optimizer = torch.optim.SGD(method.parameters(), lr=lr, weight_decay=0.1, momentum=0.9)
    out: StepOutput = method(batch, step)
    out.loss.backward()
    method.after_backward(step)
    optimizer.step()
    method.after_update(step, batch, out.carry)
    return out


def test_every_other_view_predicts_the_balanced_codes_of_the_large_views() -> None:
    method, batch = small_swav(), whole_batch()
    out = method(batch, at(0))
    torch.testing.assert_close(out.loss, expected_loss(method, unit_embeddings(method, batch)), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == SwAV.logged


def test_codes_have_no_gradient() -> None:
    method, batch = small_swav(), whole_batch()
    method(batch, at(0)).loss.backward()
    ours = [p.grad.clone() for p in method.parameters() if p.grad is not None]
    method.zero_grad()
    expected_loss(method, unit_embeddings(method, batch)).backward()
    torch.testing.assert_close(ours, [p.grad for p in method.parameters()], rtol=1e-7, atol=1e-12)


def test_one_head_alone_and_no_small_views_train_as_well() -> None:
    method = small_swav(prototypes="[5]", **{"views.num_local": 0})
    batch = whole_batch()
    batch = Batch({"global": batch.views["global"]}, batch.index, batch.label)
    assert method(batch, at(0)).loss.isfinite()


@pytest.mark.thorough
@pytest.mark.parametrize("start", ["full", "random"])
def test_codes_are_balanced_with_the_queue_once_it_may_be_used(start: str) -> None:
    method, batch = small_swav(queue_length=12, queue_from="1st", queue_start=start), whole_batch()
    queue = method.queue
    assert queue is not None
    for index, seed in enumerate((2, 3, 4)):
        z = unit_embeddings(method, batch)
        is_used = start == "random" and index >= 1
        expected = expected_loss(method, z, queue.keys if is_used else None)
        torch.testing.assert_close(method(batch, at(index)).loss, expected, rtol=1e-9, atol=0)
        updated(method, at(index), whole_batch(seed))
    assert queue.is_filled().all()
    expected = expected_loss(method, unit_embeddings(method, batch), queue.keys)
    torch.testing.assert_close(method(batch, at(3)).loss, expected, rtol=1e-9, atol=0)
    assert (method(batch, at(0)).loss - expected).abs() > 1e-6


def test_the_queue_holds_the_large_views_of_the_newest_batches_side_by_side() -> None:
    method = small_swav(queue_length=12, queue_from="1st")
    queue = method.queue
    assert queue is not None
    random = queue.keys.clone()
    updated(method, at(0), whole_batch())
    assert torch.equal(queue.keys, random)
    z = unit_embeddings(method, whole_batch(2)).detach()
    updated(method, at(1), whole_batch(2))
    torch.testing.assert_close(queue.keys[:6], z[:2].transpose(0, 1), rtol=1e-12, atol=1e-12)
    assert torch.equal(queue.keys[6:], random[6:])


def test_prototypes_are_held_and_then_train_and_are_unit_vectors_always() -> None:
    method = small_swav(freeze_prototypes="2st")
    begun = [prototypes.weight.detach().clone() for prototypes in method.prototypes]
    for index in range(4):
        for prototypes, weight in zip(method.prototypes, begun, strict=True):
            torch.testing.assert_close(prototypes.weight.norm(dim=1), torch.ones(len(weight), dtype=torch.float64))
            far = (prototypes.weight - weight).abs().max()
            assert far < 1e-7 if index <= 2 else far > 1e-5
        updated(method, at(index), whole_batch(index))


def test_codes_are_one_prototype_alone_at_first() -> None:
    method, batch = small_swav(hard_until="1st", prototypes="[5]"), whole_batch()
    z, weight = unit_embeddings(method, batch), method.prototypes[0].weight
    terms = []
    for assigned in (0, 1):
        first = balanced((z[assigned] @ weight.T).detach()).argmax(dim=1)
        others = [view for view in range(NUM_VIEWS) if view != assigned]
        terms += [F.cross_entropy(z[view] @ weight.T / 0.1, first) for view in others]
    torch.testing.assert_close(method(batch, at(0)).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    torch.testing.assert_close(method(batch, at(1)).loss, expected_loss(method, z), rtol=1e-9, atol=0)


@pytest.mark.parametrize("fields", [{"temperature": 1e-4}, {"temperature": 1e4}, {"epsilon": 1e-3}, {"epsilon": 1e3}])
def test_loss_and_gradients_are_finite_at_extremes_and_when_all_embeddings_are_equal(fields: dict[str, float]) -> None:
    for is_collapsed in (False, True):
        method = small_swav(**fields).float()
        if is_collapsed:
            torch.nn.init.zeros_(method.projector[-1].weight)
        out = method(whole_batch().map(lambda rows: rows.float() if rows.is_floating_point() else rows), at(0))
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
        assert (out.metrics["embedding_std"] < 1e-6) == is_collapsed


def test_codes_and_scores_are_float32_under_bf16() -> None:
    method, batch = small_swav(queue_length=6).float(), whole_batch()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch.map(lambda rows: rows.float() if rows.is_floating_point() else rows), at(0))
    assert out.loss.dtype == out.carry["z"].dtype == torch.float32


def test_views_are_the_papers() -> None:
    groups = SwAV.Config().views.recipe().groups
    assert [len(groups[name]) for name in ("global", "local")] == [2, 6]
    assert (groups["global"][0].crop.size, groups["global"][0].crop.scale) == (224, (0.14, 1.0))
    assert (groups["local"][0].crop.size, groups["local"][0].crop.scale) == (96, (0.05, 0.14))
    assert groups["global"][0].transforms[1] == ColorJitter(
        p=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2
    )
    names = [type(transform).__name__ for transform in groups["local"][0].transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"views.num": 1, "views.num_local": 0},
            "predicts the assignment of one view from another: give at least 2 views",
        ),
        ({"prototypes": "[3,13]"}, "method.prototypes has 13 for 12 training images.*set 12 or fewer, better 1"),
        ({"queue_length": 15}, "method.queue_length is 15, not a multiple of train.batch_size 6; set 12 or 18"),
        ({"queue_length": 5}, r"set 0 or 6 \(0: no queue\)"),
    ],
)
def test_check_refuses_what_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SwAV.check(setup_of(**fields))


def test_check_accepts_a_queue_of_whole_batches() -> None:
    SwAV.check(setup_of(queue_length=18, prototypes="[12]"))
