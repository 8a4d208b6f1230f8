from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import UNKNOWN
from raysl.methods.deepcluster_v2 import DeepClusterV2
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

NUM_SAMPLES = 14
SMALL = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "method.hidden_dim=16",
    "method.output_dim=8",
    "method.clusters=[4,3,4]",
    "method.bank_crops=[0,1]",
    "train.batch_size=6",
)
START = Step(0, 100, 10)


def setup_of(num_samples: int = NUM_SAMPLES, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/deepcluster_v2", [*SMALL, *words]), num_samples)


def small_method(**fields: Any) -> DeepClusterV2:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return DeepClusterV2(setup, ResNet(setup.config.backbone)).double()


def some_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {"global": torch.randn(6, 2, 3, 16, 16, dtype=torch.float64, generator=generator)}
    return Batch(views, torch.tensor([9, 3, 0, 13, 5, 6]), torch.full((6,), -1))


def plain_images() -> Tensor:
    return torch.randn(NUM_SAMPLES, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def plain() -> Iterator[Batch]:
    """All images in dataset order, in two batches."""
    for index in torch.arange(NUM_SAMPLES).split(10):
        yield Batch({"image": plain_images()[index, None]}, index, torch.full_like(index, -1))


def unit_embeddings(method: DeepClusterV2, images: Tensor) -> Tensor:
    return F.normalize(method.projector(method.backbone(images)), dim=1)


def started(**fields: Any) -> DeepClusterV2:
    method = small_method(**fields)
    method.before_epoch(START, plain)
    return method


def test_every_view_is_classified_into_its_images_cluster() -> None:
    method, batch = started(temperature=0.2), some_batch()
    out = method(batch, START)
    z = unit_embeddings(method, batch.views["global"].flatten(0, 1)).unflatten(0, (6, 2))
    terms = []
    for head in range(3):
        centroids = method.get_buffer(f"centroids_{head}")
        for row, index in enumerate(batch.index.tolist()):
            for view in range(2):
                p = torch.softmax(z[row, view] @ centroids.T / 0.2, dim=0)
                terms.append(-p[method.assignments[head, index]].log())
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == DeepClusterV2.logged


def test_small_views_are_classified_too() -> None:
    method, batch = started(), some_batch()
    views = batch.views | {"local": torch.randn(6, 3, 3, 12, 12, dtype=torch.float64)}
    with_small = method.eval()(Batch(views, batch.index, batch.label), START).loss
    large, small = (
        method(Batch({"global": views[name]}, batch.index, batch.label), START).loss for name in ("global", "local")
    )
    torch.testing.assert_close(with_small, (2 * large + 3 * small) / 5, rtol=1e-9, atol=0)


def test_before_the_first_epoch_every_image_is_embedded_as_it_is_and_clustered() -> None:
    method = small_method()
    assert (method.assignments == UNKNOWN).all()
    running = {name: value.clone() for name, value in method.named_buffers() if "running" in name}
    method.before_epoch(START, plain)
    assert method.training
    assert all(torch.equal(method.get_buffer(name), value) for name, value in running.items())
    z = unit_embeddings(method.eval(), plain_images()).detach()
    for bank in method.banks:
        torch.testing.assert_close(bank.bank, z, rtol=0, atol=1e-12)
    for head, k in enumerate((4, 3, 4)):
        centroids = method.get_buffer(f"centroids_{head}")
        assert centroids.shape == (k, 8)
        torch.testing.assert_close(centroids.norm(dim=1), torch.ones(k, dtype=torch.float64))
        nearest = [max(range(k), key=lambda c, row=row: float(row @ centroids[c])) for row in z]  # type: ignore[misc]
        assert method.assignments[head].tolist() == nearest


def test_later_epochs_cluster_what_the_banks_hold_each_head_one_bank_in_turn() -> None:
    method = started()
    torch.manual_seed(5)
    held = [F.normalize(torch.randn(NUM_SAMPLES, 8, dtype=torch.float64), dim=1) for _ in range(2)]
    for bank, rows in zip(method.banks, held, strict=True):
        bank.bank.copy_(rows)

    def none() -> Iterator[Batch]:
        raise AssertionError("images are not looked at again")

    method.before_epoch(Step(10, 100, 10), none)
    for head, rows in enumerate((held[0], held[1], held[0])):
        nearest = (rows @ method.get_buffer(f"centroids_{head}").T).argmax(dim=1)
        assert torch.equal(method.assignments[head], nearest)
    assert not torch.equal(method.get_buffer("centroids_0"), method.get_buffer("centroids_2"))  # other first rows


def test_the_same_step_clusters_the_same_way_whatever_was_drawn_before() -> None:
    first = started()
    torch.manual_seed(99)
    again = small_method()
    torch.manual_seed(7)
    again.before_epoch(START, plain)
    assert torch.equal(first.assignments, again.assignments)


def test_an_update_puts_the_views_embeddings_into_the_rows_of_their_images() -> None:
    method, batch = started(), some_batch()
    before = [bank.bank.clone() for bank in method.banks]
    out = method(batch, START)
    z = unit_embeddings(method, batch.views["global"].flatten(0, 1)).unflatten(0, (6, 2))
    assert all(torch.equal(bank.bank, old) for bank, old in zip(method.banks, before, strict=True))
    method.after_update(START, batch, out.carry)
    others = [index for index in range(NUM_SAMPLES) if index not in batch.index.tolist()]
    for crop, (bank, old) in enumerate(zip(method.banks, before, strict=True)):
        torch.testing.assert_close(bank.bank[batch.index], z[:, crop], rtol=0, atol=1e-12)
        assert torch.equal(bank.bank[others], old[others])


def test_images_without_a_cluster_have_no_loss() -> None:
    method, batch = started(), some_batch()
    whole = method.eval()(batch, START).loss
    method.assignments[:, batch.index[:3]] = UNKNOWN
    rest = method(batch.map(lambda rows: rows[3:]), START).loss
    torch.testing.assert_close(method(batch, START).loss, rest / 2)
    assert whole != rest
    method.assignments.fill_(UNKNOWN)
    out = method(batch, START)
    out.loss.backward()
    assert out.loss == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in method.parameters())


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
def test_loss_and_gradients_are_finite_at_extremes_and_when_all_embeddings_are_equal(temperature: float) -> None:
    for is_collapsed in (False, True):
        method = small_method(temperature=temperature)
        if is_collapsed:
            torch.nn.init.zeros_(method.projector[-1].weight)
        method.before_epoch(START, plain)
        out = method(some_batch(), START)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
        assert (out.metrics["embedding_std"] < 1e-6) == is_collapsed


def test_views_are_the_papers() -> None:
    groups = DeepClusterV2.Config().views.recipe().groups
    assert list(groups) == ["global"]
    first, second = groups["global"]
    assert first == second
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    names = [type(transform).__name__ for transform in first.transforms]
    assert names == ["HorizontalFlip", "ColorJitter", "Grayscale", "GaussianBlur"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clusters": "[4,15]"}, "method.clusters has 15 for 14 training images.*set 14 or fewer, better 1"),
        ({"bank_crops": "[0,2]"}, "method.bank_crops has 2, but views are numbered from 0 to 1.*method.views.num to 3"),
    ],
)
def test_check_refuses_what_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeepClusterV2.check(setup_of(**fields))


def test_check_accepts_a_cluster_an_image_and_banks_of_small_views() -> None:
    DeepClusterV2.check(setup_of(clusters="[14]", bank_crops="[0,1,2]", **{"views.num_local": 1}))
