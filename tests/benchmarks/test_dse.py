"""DSE beside slow loops in NumPy, and on networks with maps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.benchmarks import dse
from raysl.benchmarks.benchmark import Labelled, by_name
from raysl.benchmarks.dense import structure as structures
from raysl.benchmarks.dense.structure import Structure, structure_of
from raysl.benchmarks.dse import DSE
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from raysl.nn.kmeans import kmeans
from tests.benchmarks.contexts import context_of, tiny_resnet, tiny_vit

DATA = Digits.Config(image_size=32)
SETTINGS = {"image_clusters": 3, "group_images": 4, "group_clusters": 6, "iters": 4, "seed": 7}


def cloud(num_images: int, num_patches: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(num_images, 1, width, generator=generator)
    return centres + torch.randn(num_images, num_patches, width, generator=generator, dtype=torch.float64)


def slow_radius(rows: np.ndarray) -> float:
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    return sum(values) / max(len(rows) - 1, rows.shape[1]) ** 0.5


def slow_rank(rows: np.ndarray) -> float:
    values = np.linalg.svd(rows, compute_uv=False)
    shares = values / values.sum() + 1e-12
    return float(np.exp(-sum(share * np.log(share) for share in shares))) / min(rows.shape)


def slow_structure(patches: np.ndarray, clusters: list[tuple[np.ndarray, np.ndarray]], orders: np.ndarray) -> Structure:
    """From centroids and labels of each k-means, images first and then groups, and the order of patches by image."""
    num_images, num_patches, width = patches.shape
    everything = patches.reshape(-1, width)
    spread = np.mean([np.linalg.norm(row - everything.mean(axis=0)) for row in everything])
    image_radii = []
    for image, (_, labels) in zip(patches, clusters[:num_images], strict=True):
        radii = [slow_radius(image[labels == one]) for one in set(labels.tolist()) if sum(labels == one) > 1]
        image_radii.append(np.mean(radii))
    distances, group_radii = [], []
    groups = patches.reshape(len(clusters) - num_images, -1, width)
    for group, (centroids, labels) in zip(groups, clusters[num_images:], strict=True):
        nearest = [
            min(np.linalg.norm(row - centroids[other]) for other in set(labels.tolist()) if other != label)
            for row, label in zip(group, labels, strict=True)
        ]
        distances.append(np.mean(nearest))
        group_radii += [slow_radius(group[labels == one]) for one in set(labels.tolist()) if sum(labels == one) > 1]
    ranks = [
        slow_rank(np.stack([patches[image, orders[image, number]] for image in range(num_images)]))
        for number in range(num_patches)
    ]
    parts = (np.mean(distances) / spread, np.mean(image_radii) / spread, np.mean(group_radii) / spread, np.mean(ranks))
    return Structure(*(float(part) for part in parts))


@pytest.mark.parametrize(("num_images", "num_patches", "width"), [(8, 12, 5), (8, 9, 30)])
def test_the_parts_are_those_of_slow_loops(
    monkeypatch: pytest.MonkeyPatch, num_images: int, num_patches: int, width: int
) -> None:
    patches = cloud(num_images, num_patches, width)
    calls: list[tuple[np.ndarray, np.ndarray]] = []

    def recorded(*args: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        centroids, labels = kmeans(*args, **settings)
        calls.append((centroids.numpy(), labels.numpy()))
        return centroids, labels

    # the first draw is that of the orders
    drawn: list[Tensor] = []
    rand = torch.rand

    def remembered(*args: Any, **settings: Any) -> Tensor:
        drawn.append(rand(*args, **settings))
        return drawn[-1]

    monkeypatch.setattr(structures, "kmeans", recorded)
    monkeypatch.setattr(torch, "rand", remembered)
    structure = structure_of(patches, **SETTINGS)
    expected = slow_structure(patches.numpy(), calls, drawn[0].argsort(dim=1).numpy())
    assert len(calls) == num_images + 2
    for name, value in vars(expected).items():
        assert getattr(structure, name) == pytest.approx(value, rel=1e-6), name


def test_parts_do_not_change_with_the_scale_and_the_place_of_all_features() -> None:
    patches = cloud(8, 12, 5)
    structure = structure_of(patches, **SETTINGS)
    moved = structure_of(10 * patches + 3, **SETTINGS)
    for name in ("distance", "image_radius", "group_radius"):
        assert getattr(moved, name) == pytest.approx(getattr(structure, name), rel=1e-9)
    scaled = structure_of(10 * patches, **SETTINGS)
    assert scaled.dimensionality == pytest.approx(structure.dimensionality, rel=1e-9)


def test_three_of_six_directions_are_half_of_the_dimensionality_and_collapsed_patches_have_no_distance() -> None:
    directions = torch.eye(3, 6, dtype=torch.float64)
    patches = directions[torch.arange(48).view(8, 6) % 3]
    half = structure_of(patches, image_clusters=2, group_images=8, group_clusters=2, iters=5, seed=3)
    assert 0.4 < half.dimensionality <= 0.5 + 1e-6
    collapsed = structure_of(torch.ones(8, 6, 6), **SETTINGS)
    assert collapsed == Structure(0, 0, 0, pytest.approx(1 / 6, rel=1e-5))


def test_clusters_without_patches_are_no_neighbours() -> None:
    patches = torch.zeros(8, 12, 5)
    patches[:, :6] = cloud(8, 6, 5) * 1e-3 + 10  # half of the patches are one vector, and start many clusters
    assert structure_of(patches, **SETTINGS).distance > 0.4, "with empty clusters 0.0004"
    centroids, labels = torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([0, 0, 2])
    assert structures._distance(torch.tensor([[0.0], [0.0], [3.0]]), centroids, labels) == 3.0
    assert structures._distance(torch.zeros(3, 1), centroids, torch.zeros(3, dtype=torch.int64)) == 0.0


def test_dse_adds_up_its_parts() -> None:
    structure = Structure(distance=1.5, image_radius=0.4, group_radius=0.8, dimensionality=0.25)
    assert structure.dse() == pytest.approx(1.5 - 0.6 + 0.25)
    assert structure.dse(dim_weight=2) == pytest.approx(1.5 - 0.6 + 0.5)


@pytest.mark.thorough
@pytest.mark.parametrize(("network", "stage", "width"), [(tiny_vit(), None, 16), (tiny_resnet(), "res3", 16)])
def test_networks_with_tokens_and_with_maps_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: nn.Module, stage: str | None, width: int
) -> None:
    seen: list[Tensor] = []
    plain = structure_of

    def recorded(patches: Tensor, *args: Any) -> Structure:
        seen.append(patches)
        return plain(patches, *args)

    monkeypatch.setattr(dse, "structure_of", recorded)
    config = DSE.Config(images=27, group_clusters=8, stage=stage, dim_weight=0.5)
    assert DSE.needs(config).labels == "none"
    assert not DSE.needs(config).test
    assert DSE.stages(config) == ()
    metrics = by_name(DSE(config).measure(context_of(network, DATA, tmp_path)))
    assert list(metrics) == DSE.metrics(config, 0)
    (patches,) = seen
    # 27 images are 3 groups of 8
    assert patches.shape == (24, 16, width)
    assert torch.allclose(patches.norm(dim=2), torch.ones(24, 16), atol=1e-5)
    parts = Structure(**{name: metric.value for name, metric in metrics.items() if name != "dse"})
    assert metrics["dse"].value == pytest.approx(parts.dse(0.5))
    assert [name for name, metric in metrics.items() if metric.is_lower_better] == ["image_radius", "group_radius"]
    assert [name for name, metric in metrics.items() if metric.is_headline] == ["dse"]
    again = by_name(DSE(config).measure(context_of(network, DATA, tmp_path)))
    assert {name: metric.value for name, metric in again.items()} == {
        name: metric.value for name, metric in metrics.items()
    }


def test_features_are_the_patch_tokens_of_each_image_in_a_drawn_order(tmp_path: Path) -> None:
    network = tiny_vit()
    context = context_of(network, DATA, tmp_path)
    patches = DSE(DSE.Config(images=16))._patches(context)
    in_order = DSE(DSE.Config(images=16, group_images=16))._patches(context)
    assert torch.equal(patches, in_order)  # the order is that of the seed, whatever the groups are
    images = next(iter(context.images.values()))
    assert images.num_samples > 16
    rows = {tuple(patch.flatten().tolist()) for patch in patches}
    assert len(rows) == 16
    assert patches.shape == (16, 16, 16)
    # the tokens are normalised by the last layer norm
    assert torch.allclose(F.layer_norm(patches, (16,)), patches, atol=1e-3)


def test_too_few_images_are_refused() -> None:
    images = Labelled(num_train=7, num_test=100, classes=(), counts=None)
    with pytest.raises(ConfigError, match=r"groups of group_images=8, and would look at 7: 7 in the train split"):
        DSE.fit_to(DSE.Config(), images)
    assert DSE.fit_to(DSE.Config(split="test"), images)[1] == []
    with pytest.raises(ConfigError, match=r"images=4; give more images or smaller groups"):
        DSE.fit_to(DSE.Config(split="test", images=4), images)


def test_maps_with_fewer_places_than_clusters_are_refused() -> None:
    checkpoint: Any = SimpleNamespace(backbone=tiny_resnet(), config=SimpleNamespace(data=DATA))
    with pytest.raises(ConfigError, match=r"image_clusters=3 among the 1 places of the map res5 of an image"):
        DSE.check(DSE.Config(), checkpoint)
    with pytest.raises(ConfigError, match=r"stages: 'res9' is not a map of this backbone"):
        DSE.check(DSE.Config(stage="res9"), checkpoint)
    DSE.check(DSE.Config(stage="res3"), checkpoint)


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    network = tiny_vit()
    with torch.no_grad():
        network.norm.bias.fill_(float("nan"))
    with pytest.raises(ConfigError, match="patch features of the train images are not finite"):
        DSE(DSE.Config(images=8)).measure(context_of(network, DATA, tmp_path))
