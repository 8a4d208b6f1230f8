import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysl.benchmarks import geometry, spectrum
from raysl.benchmarks.benchmark import Context, FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.geometry import Geometry, embedded_views, even_index
from raysl.benchmarks.spectrum import Lidar, Spectrum, alignments, effective_rank, power_law_exponent, uniformity
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from tests.benchmarks.contexts import Flat, context_of

DATA = Digits.Config(image_size=16)


def cloud(num: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, dim, generator=generator) * torch.linspace(2, 0.1, dim) + 1


def slow_rank(values: np.ndarray) -> float:
    shares = values / values.sum() + 1e-7
    return math.exp(-sum(share * math.log(share) for share in shares))


@pytest.mark.parametrize(("num", "dim"), [(40, 12), (12, 12), (9, 12)])
def test_singular_values_are_those_of_the_whole_matrix_for_any_chunks(num: int, dim: int) -> None:
    rows = cloud(num, dim)
    expected = torch.linalg.svdvals(rows.double())
    centred = torch.linalg.svdvals((rows - rows.double().mean(dim=0)).double()).square() / num
    for size in (1, 5, num):
        found = Spectrum(torch.split(rows, size))
        assert torch.allclose(found.singular_values(), expected, atol=1e-6)
        assert torch.allclose(found.variances(), centred, atol=1e-6)


def test_rankme_is_the_formula_of_its_paper() -> None:
    values = np.linalg.svd(cloud(40, 12).double().numpy(), compute_uv=False)
    assert effective_rank(torch.from_numpy(values)) == pytest.approx(slow_rank(values))


def test_directions_that_are_used_alike_count_whole_and_a_collapse_is_one_direction() -> None:
    assert effective_rank(Spectrum([torch.eye(7)]).singular_values()) == pytest.approx(7, rel=1e-4)
    assert effective_rank(Spectrum([torch.ones(20, 7)]).singular_values()) == pytest.approx(1, abs=1e-4)
    assert effective_rank(Spectrum([torch.zeros(20, 7)]).singular_values()) == 0


@pytest.mark.parametrize("num", [5, 1000])
def test_equal_rows_have_no_variance_and_rows_about_a_far_point_theirs(num: int) -> None:
    row = cloud(1, 12) + 100
    equal = Spectrum(torch.split(row.repeat(num, 1), 64)).variances()
    assert not equal.any()
    assert (effective_rank(equal.sqrt()), power_law_exponent(equal)) == (0, 0)
    rows = cloud(num, 12) / 1024  # whose sums with the far point are rounded to float32 together with it
    found = Spectrum(torch.split(row + rows, 64)).variances()
    centred = (row + rows).double()
    expected = torch.linalg.svdvals(centred - centred.mean(dim=0)).square() / num
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-18)


def test_a_power_law_has_its_exponent() -> None:
    orders = torch.arange(1, 201, dtype=torch.float64)
    for alpha in (0.5, 1.0, 2.5):
        assert power_law_exponent(3 * orders**-alpha) == pytest.approx(alpha)
        assert power_law_exponent(3 * orders[:8] ** -alpha) == pytest.approx(alpha)  # fewer than the first order
    bent = torch.where(orders < 11, orders**-3, 11**-2 * orders**-1)
    assert power_law_exponent(bent) == pytest.approx(1)
    assert (
        power_law_exponent(torch.zeros(5, dtype=torch.float64))
        == power_law_exponent(torch.ones(1, dtype=torch.float64))
        == 0
    )


def test_the_fit_weighs_orders_as_a_slow_solver_does() -> None:
    variances = torch.from_numpy(np.sort(np.random.default_rng(0).random(60))[::-1].copy())
    order = np.arange(11, 61)
    slope, _ = np.polyfit(np.log(order), np.log(variances.numpy()[10:]), 1, w=np.sqrt(1 / order))
    assert power_law_exponent(variances) == pytest.approx(-slope)


def test_uniformity_is_that_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cloud(30, 5)
    unit = (rows / rows.norm(dim=1, keepdim=True)).double()
    expected = torch.pdist(unit).square().mul(-2).exp().mean().log().item()
    assert uniformity(rows) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(spectrum, "PAIRS_AT_ONCE", 70)
    assert uniformity(rows) == pytest.approx(expected, rel=1e-5)
    assert uniformity(torch.ones(6, 3)) == pytest.approx(0, abs=1e-5)


def test_features_that_collapsed_to_zero_are_not_uniform() -> None:
    assert uniformity(torch.zeros(6, 3)) == 0
    rows = torch.cat([torch.zeros(2, 3), torch.eye(3)])
    expected = torch.pdist(rows.double()).square().mul(-2).exp().mean().log().item()
    assert uniformity(rows) == pytest.approx(expected, rel=1e-5)


def test_alignment_is_the_mean_over_pairs_of_views() -> None:
    views = cloud(3 * 4, 6).view(3, 4, 6)
    unit = views / views.norm(dim=2, keepdim=True)
    slow = [
        np.mean([(own[a] - own[b]).square().sum().item() for a in range(4) for b in range(4) if a != b]) for own in unit
    ]
    assert torch.allclose(alignments(views), torch.tensor(slow).double(), atol=1e-6)
    assert torch.allclose(alignments(views[:, :1].expand(3, 4, 6)), torch.zeros(3).double(), atol=1e-9)


def test_lidar_is_the_formula_of_its_paper_for_any_batches() -> None:
    for num, dim in ((30, 6), (5, 9)):
        views = cloud(num, dim)[:, None] + 0.3 * cloud(num * 4, dim, seed=1).view(num, 4, dim)
        means = views.double().mean(dim=1).numpy()
        between = np.cov(means.T, bias=True)
        apart = (views.double().numpy() - means[:, None]).reshape(-1, dim)
        values, directions = np.linalg.eigh(apart.T @ apart / len(apart) + 1e-4 * np.eye(dim))
        root = directions / np.sqrt(values) @ directions.T
        expected = slow_rank(np.linalg.eigvalsh(root @ between @ root).clip(0))
        for size in (2, num):
            lidar = Lidar(dim)
            for part in torch.split(views, size):
                lidar.add(part)
            assert lidar.rank() == pytest.approx(expected, rel=1e-4)


def test_lidar_counts_only_directions_that_tell_images_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    told = torch.zeros(200, 1, 8)
    told[..., :3] = 10 * torch.randn(200, 1, 3, generator=generator)  # of the image; the other five change by view
    views = told + torch.randn(200, 20, 8, generator=generator)
    lidar = Lidar(8)
    lidar.add(views)
    assert lidar.rank() == pytest.approx(3, abs=0.1)


def test_lidar_needs_views() -> None:
    with pytest.raises(ValueError, match=r"no views; call add\(views\) first"):
        Lidar(8).rank()


def test_an_even_share_spans_all() -> None:
    assert even_index(10, 4).tolist() == [0, 2, 5, 7]
    assert even_index(3, 10).tolist() == [0, 1, 2]


def measured(tmp_path: Path, features: Tensor, network: nn.Module | None = None, **settings: object) -> Findings:
    images = FeatureSet(features, torch.full((len(features),), -1))
    context = context_of(network or Flat(), DATA, tmp_path, train=images)
    return Geometry(Geometry.Config(images=20, views=3, **settings)).measure(context)


def test_features_are_measured_without_labels(tmp_path: Path) -> None:
    features = cloud(120, 12)
    config = Geometry.Config()
    assert Geometry.needs(config).labels == "none"
    assert not Geometry.needs(config).test
    found = measured(tmp_path, features, nn.Sequential(Flat(), nn.Linear(3 * 16 * 16, 12)))
    metrics = by_name(found.metrics)
    assert list(metrics) == Geometry.metrics(config, 0)
    assert metrics["rankme"].value == pytest.approx(slow_rank(np.linalg.svd(features.numpy(), compute_uv=False)))
    centred = np.linalg.svd((features - features.mean(dim=0)).numpy(), compute_uv=False)
    assert metrics["effective_rank"].value == pytest.approx(slow_rank(centred), rel=1e-4)
    assert [name for name, metric in metrics.items() if metric.is_headline] == ["rankme"]
    assert {name for name, metric in metrics.items() if metric.is_lower_better} == {"alignment", "uniformity"}
    assert all(metric.unit == "" and math.isfinite(metric.value) for metric in metrics.values())
    low, high = metrics["alignment"].interval or (0, 0)
    assert 0 < low < metrics["alignment"].value < high < 4
    (curve,) = found.figures["curves"].values()
    shares = 10 ** np.array(curve["lines"]["features"])[:, 1]
    assert shares.sum() == pytest.approx(1)


def test_without_views_no_image_is_read(tmp_path: Path) -> None:
    found = by_name(measured(tmp_path, cloud(40, 6), augmented=False).metrics)
    assert list(found) == Geometry.metrics(Geometry.Config(augmented=False), 0)


def test_few_rows_are_an_even_share_of_them(tmp_path: Path) -> None:
    features = cloud(120, 12)
    found = by_name(measured(tmp_path, features, rows=40, augmented=False).metrics)
    few = features[torch.from_numpy(even_index(120, 40))]
    assert found["rankme"].value == pytest.approx(slow_rank(np.linalg.svd(few.numpy(), compute_uv=False)))


def views_of(context: Context, num: int, blur_p: float = 0.0) -> Tensor:
    recipe = Geometry(Geometry.Config(views=4, blur_p=blur_p))._recipe(16)
    parts = embedded_views(context.network, context.images["train"], recipe, context.data, num, seed=0)
    return torch.cat(list(parts))


@pytest.mark.thorough
def test_views_of_an_image_differ_and_depend_on_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(Flat(), DATA, tmp_path)
    views = views_of(context, 10)
    assert views.shape == (10, 4, 3 * 16 * 16)
    assert alignments(views).min() > 0
    monkeypatch.setattr(geometry, "BATCH_VIEWS", 3)
    assert torch.equal(views_of(context, 10), views)
    assert not torch.equal(views_of(context, 10, blur_p=1.0), views)


def test_images_are_blurred_from_64_pixels_on() -> None:
    def names(size: int) -> list[str]:
        (first, *_) = Geometry(Geometry.Config())._recipe(size).groups["views"]
        return [type(transform).__name__ for transform in first.transforms]

    assert "GaussianBlur" not in names(32)
    assert "GaussianBlur" in names(64)


def test_one_image_is_refused() -> None:
    images = Labelled(num_train=1, num_test=100, classes=(), counts=None)
    with pytest.raises(ConfigError, match=r"geometry compares images, and would look at 1: 1 in the train split"):
        Geometry.fit_to(Geometry.Config(), images)
    assert Geometry.fit_to(Geometry.Config(split="test"), images)[1] == []
    with pytest.raises(ConfigError, match=r"images=1; give 2 or more"):
        Geometry.fit_to(Geometry.Config(split="test", images=1), images)


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 of 40 train rows have features that are not finite"):
        measured(tmp_path, torch.cat([cloud(39, 6), torch.full((1, 6), math.nan)]))
