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
from raysl.methods.deepcluster import DeepCluster
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import whitened
from raysl.optim.build import build_optimizer
from raysl.plan.setup import Setup
from raysl.schedule import Step

NUM_SAMPLES = 14
SMALL = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "method.clusters=4",
    "method.pca_dim=3",
    "method.reassign_every=1",
    "train.batch_size=6",
)
START = Step(0, 100, 10)


def setup_of(num_samples: int = NUM_SAMPLES, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/deepcluster", [*SMALL, *words]), num_samples)


def small_method(**fields: Any) -> DeepCluster:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return DeepCluster(setup, ResNet(setup.config.backbone)).double()


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


def started(**fields: Any) -> DeepCluster:
    method = small_method(**fields)
    method.before_epoch(START, plain)
    return method


def test_images_weigh_so_that_all_clusters_do_alike() -> None:
    method, batch = started(), some_batch()
    out = method(batch, START)
    sizes = [int((method.assignments == k).sum()) for k in range(4)]
    num_used = sum(size > 0 for size in sizes)
    h = method.backbone(batch.views["global"].flatten(0, 1)).unflatten(0, (6, 2))
    terms = []
    for row, index in enumerate(batch.index.tolist()):
        cluster = int(method.assignments[index])
        for view in range(2):
            p = torch.softmax(method.classifier.weight @ h[row, view] + method.classifier.bias, dim=0)
            terms.append(-p[cluster].log() * NUM_SAMPLES / (num_used * sizes[cluster]))
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == DeepCluster.logged
    assert float(out.metrics["largest_cluster"]) == pytest.approx(100 * max(sizes) / NUM_SAMPLES)


def test_empty_clusters_count_for_nothing_and_the_rest_add_up() -> None:
    method = started()
    method.sizes.copy_(torch.tensor([0, 7, 5, 2]))
    weights = method._weights()
    assert weights[1:].tolist() == pytest.approx([14 / (3 * 7), 14 / (3 * 5), 14 / (3 * 2)])
    assert float((weights * method.sizes).sum()) == pytest.approx(14)


def test_before_each_epoch_whitened_features_of_plain_images_are_clustered() -> None:
    method = small_method()
    assert (method.assignments == UNKNOWN).all()
    running = {name: value.clone() for name, value in method.named_buffers() if "running" in name}
    method.before_epoch(START, plain)
    assert method.training
    assert all(torch.equal(method.get_buffer(name), value) for name, value in running.items())
    z = F.normalize(whitened(method.eval().backbone(plain_images()).detach(), 3), dim=1)
    for image, cluster in enumerate(method.assignments.tolist()):  # 20 rounds have settled: nearest to its own mean
        means = torch.stack([z[method.assignments == k].mean(dim=0) for k in range(4)])
        assert int((z[image] - means).norm(dim=1).argmin()) == cluster
    assert method.sizes.tolist() == [int((method.assignments == k).sum()) for k in range(4)]


def test_each_epoch_begins_with_a_fresh_classifier_and_other_first_rows() -> None:
    method = started(clusters=8)
    first = (method.classifier.weight.detach().clone(), method.assignments.clone())
    assert 0.005 < method.classifier.weight.std() < 0.02
    method.classifier.bias.data.fill_(3.0)
    torch.manual_seed(1)  # as the loop seeds another step
    method.before_epoch(Step(10, 100, 10), plain)
    assert (method.classifier.bias == 0).all()
    assert (method.classifier.weight != first[0]).any()
    assert not torch.equal(method.assignments, first[1])
    torch.manual_seed(99)
    again = small_method(clusters=8)
    again.before_epoch(START, plain)
    assert torch.equal(again.assignments, first[1])


def test_epochs_in_between_keep_their_clusters_and_the_classifier() -> None:
    method = started(reassign_every=2)
    state = {name: value.clone() for name, value in method.state_dict().items()}

    def none() -> Iterator[Batch]:
        raise AssertionError("images are not looked at")

    method.before_epoch(Step(10, 100, 10), none)
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    method.before_epoch(Step(20, 100, 10), plain)
    assert not torch.equal(method.classifier.weight, state["classifier.weight"])


def test_the_classifier_alone_has_no_momentum() -> None:
    method = small_method()
    optimizer = build_optimizer(method, method.setup.config.optim)
    head = {id(parameter) for parameter in method.classifier.parameters()}
    momenta = {id(p): group["momentum"] for group in optimizer.param_groups for p in group["params"]}
    assert {momenta[place] for place in head} == {0.0}
    assert {momentum for place, momentum in momenta.items() if place not in head} == {0.9}
    assert len(momenta) == sum(1 for _ in method.parameters())


def test_images_without_a_cluster_have_no_loss() -> None:
    method, batch = started().eval(), some_batch()
    rest = method(batch.map(lambda rows: rows[3:]), START).loss
    method.assignments[batch.index[:3]] = UNKNOWN
    torch.testing.assert_close(method(batch, START).loss, rest / 2)


def test_loss_and_gradients_are_finite_when_all_features_are_equal() -> None:
    method = small_method()
    for parameter in method.backbone.parameters():
        torch.nn.init.zeros_(parameter)
    method.before_epoch(START, plain)
    out = method(some_batch(), START)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_settings_and_views_are_the_papers() -> None:
    config = DeepCluster.Config()
    assert (config.clusters, config.kmeans_iters, config.pca_dim) == (10_000, 20, 256)
    (view,) = config.views.recipe().groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]


def test_features_of_fewer_dimensions_are_whitened_all() -> None:
    few, many = started(pca_dim=8), started(pca_dim=256)
    assert torch.equal(few.assignments, many.assignments)


def test_check_refuses_more_clusters_than_images() -> None:
    with pytest.raises(ConfigError, match=r"method.clusters has 15 for 14 training images.*set 14 or fewer, better 1"):
        DeepCluster.check(setup_of(clusters=15))
    DeepCluster.check(setup_of(clusters=14))
