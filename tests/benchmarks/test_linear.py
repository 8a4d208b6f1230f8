from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.classifiers import probes, scaling
from raysl.benchmarks.classifiers.classification import hold_out
from raysl.benchmarks.classifiers.probes import Length, Setting, best_of, train_probes
from raysl.benchmarks.classifiers.scaling import Scaling, moments, softmax
from raysl.benchmarks.linear import Linear
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set

CPU = torch.device("cpu")
SHORT = {"epochs": 3, "min_updates": 0, "batch_size": 16}


def linear(train: FeatureSet, test: FeatureSet, num_classes: int, **settings: object) -> Findings:
    return Linear(Linear.Config(**settings)).run(train, test, num_classes, seed=0)


def top1(found: Findings) -> float:
    return by_name(found.metrics)["top1"].value


def perfect_set(num: int, seed: int, num_classes: int = 4) -> FeatureSet:
    labels = random_set(num, seed, num_classes).labels
    return FeatureSet(torch.eye(num_classes)[labels], labels)


def slow_sgd(rows: FeatureSet, index: torch.Tensor, setting: Setting, length: Length, seed: int) -> nn.Linear:
    """One classifier by torch's own SGD."""
    layer = nn.Linear(rows.features.shape[1], 4).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    lr = setting.lr * length.batch_size / 256
    optimizer = torch.optim.SGD(layer.parameters(), lr, momentum=0.9, weight_decay=setting.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length.num_updates(len(index)))
    for places in length.batches(len(index), seed):
        batch = index[places]
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(rows.features[batch]), rows.labels[batch]).backward()
        optimizer.step()
        schedule.step()
    return layer


def test_each_classifier_of_a_grid_is_what_sgd_makes_of_it_alone() -> None:
    rows = random_set(60, seed=0)
    rows = FeatureSet(rows.features.double(), rows.labels)
    index = torch.arange(3, 60)
    settings, length = [Setting(0.5), Setting(2.0, 0.01), Setting(8.0)], Length(3, batch_size=16)
    found = train_probes(rows.features, rows.labels, index, 4, settings, Scaling("none"), length, seed=5)
    logits = found.logits(rows.features)
    for place, setting in enumerate(settings):
        torch.testing.assert_close(logits[:, place], slow_sgd(rows, index, setting, length, 5)(rows.features))


def test_an_epoch_has_every_row_once_in_an_order_of_its_own_and_batches_are_even() -> None:
    batches = list(Length(2, batch_size=8).batches(20, seed=1))
    assert [len(batch) for batch in batches] == [7, 7, 6, 7, 7, 6]
    epochs = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert all(sorted(epoch.tolist()) == list(range(20)) for epoch in epochs)
    assert not torch.equal(*epochs)
    assert not torch.equal(epochs[0], torch.cat(list(Length(1, batch_size=8).batches(20, seed=2))))
    assert Length(2, batch_size=8, min_updates=7).num_updates(20) == 9


@pytest.mark.thorough
def test_it_is_as_right_as_logistic_regression_on_raw_digits() -> None:
    train, test = digits()
    scaler = StandardScaler().fit(train.features.numpy())
    other = LogisticRegression(C=0.1).fit(scaler.transform(train.features.numpy()), train.labels.numpy())
    expected = 100 * other.score(scaler.transform(test.features.numpy()), test.labels.numpy())
    found = linear(train, test, 10)
    assert top1(found) == pytest.approx(expected, abs=1.0)
    assert by_name(found.metrics)["top5"].value > 99
    (curve,) = found.figures["curves"].values()
    assert [lr for lr, _ in curve["lines"]["features"]] == list(Linear.Config().learning_rates)


@pytest.mark.thorough
@pytest.mark.parametrize("normalize", ["none", "l2", "standardize", "batch_norm"])
def test_perfect_features_give_100_and_random_ones_chance(normalize: str) -> None:
    settings = {"normalize": normalize, "min_updates": 100, "learning_rates": (0.1, 10.0)}
    assert top1(linear(perfect_set(80, 0), perfect_set(60, 1), 4, **settings)) == 100
    noise = FeatureSet(torch.randn(2000, 6, generator=torch.Generator().manual_seed(0)), random_set(2000, 1).labels)
    assert top1(linear(random_set(400, 0), noise, 4, **settings)) == pytest.approx(25, abs=4)


def test_scores_metrics_and_classes_tell_the_same() -> None:
    train, test = random_set(90, 0, num_classes=7), random_set(50, 1, num_classes=7)
    found = linear(train, test, 7, **SHORT)
    assert found.scores is not None
    assert found.are_probabilities
    torch.testing.assert_close(found.scores.sum(dim=1), torch.ones(50))
    hits = found.scores.argmax(dim=1) == test.labels
    metrics = by_name(found.metrics)
    assert metrics["top1"].value == pytest.approx(100 * hits.double().mean().item())
    best5 = found.scores.topk(5, dim=1).indices
    assert metrics["top5"].value == pytest.approx(100 * (best5 == test.labels[:, None]).any(1).double().mean().item())
    low, high = metrics["top1"].interval or (0, 0)
    assert low < metrics["top1"].value < high
    (by_class,) = found.figures["per_class"].values()
    expected = {
        str(c): 100 * hits[test.labels == c].double().mean().item() for c in range(7) if (test.labels == c).any()
    }
    assert by_class == pytest.approx(expected)


def test_test_labels_choose_nothing() -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    one, other = linear(train, test, 4, **SHORT), linear(train, FeatureSet(test.features, 3 - test.labels), 4, **SHORT)
    assert one.scores is not None
    assert other.scores is not None
    assert torch.equal(one.scores, other.scores)
    assert one.figures["curves"] == other.figures["curves"]


def test_the_last_classifier_learns_from_the_held_out_rows_too() -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    two, one = (
        linear(train, test, 4, learning_rates=(1e-9, 0.1), **SHORT),
        linear(train, test, 4, learning_rates=(0.1,), **SHORT),
    )
    assert two.scores is not None
    assert one.scores is not None
    assert torch.equal(two.scores, one.scores)
    assert "curves" not in one.figures


@pytest.mark.thorough
@pytest.mark.parametrize("normalize", ["standardize", "batch_norm"])
def test_chunks_files_and_starts_change_no_prediction(
    normalize: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    whole = linear(train, test, 4, normalize=normalize, **SHORT)
    assert whole.scores is not None
    again = linear(train, test, 4, normalize=normalize, **SHORT)
    assert again.scores is not None
    assert torch.equal(whole.scores, again.scores)
    np.save(tmp_path / "train.npy", train.features.numpy())
    mapped = FeatureSet(torch.from_numpy(np.load(tmp_path / "train.npy", mmap_mode="c")), train.labels)
    monkeypatch.setattr(scaling, "CHUNK_ROWS", 7)
    parts = linear(mapped, test, 4, normalize=normalize, **SHORT)
    assert parts.scores is not None
    torch.testing.assert_close(whole.scores, parts.scores, rtol=1e-4, atol=1e-6)
    assert whole.metrics == parts.metrics


@pytest.mark.thorough
def test_stages_are_measured_each_as_if_alone() -> None:
    train, test, deep = random_set(90, 0), random_set(50, 1), random_set(140, 2)
    stages = {"layer3": deep.features[:90]}, {"layer3": deep.features[90:]}
    config = Linear.Config(stages=("layer3",), **SHORT)
    assert Linear.stages(config) == ("", "layer3")
    names = ["top1", "mean_per_class", "macro_f1"]
    assert Linear.metrics(config, 4) == [*names, *(f"{name}_layer3" for name in names)]
    assert Linear.metrics(config, 7)[:2] == ["top1", "top5"]
    both = Linear(config).run(
        FeatureSet(train.features, train.labels, stages[0]), FeatureSet(test.features, test.labels, stages[1]), 4, 0
    )
    alone = linear(
        FeatureSet(stages[0]["layer3"], train.labels), FeatureSet(stages[1]["layer3"], test.labels), 4, **SHORT
    )
    assert by_name(both.metrics)["top1_layer3"].value == top1(alone)
    assert top1(both) == top1(linear(train, test, 4, **SHORT))
    assert [metric.name for metric in both.metrics if metric.is_headline] == ["top1"]
    pixels = Linear(config).run(train, test, 4, 0)
    assert list(by_name(pixels.metrics)) == names


def test_half_precision_is_worked_on_in_single() -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    halves = [FeatureSet(rows.features.half(), rows.labels) for rows in (train, test)]
    singles = [FeatureSet(rows.features.float(), rows.labels) for rows in halves]
    one, other = linear(*halves, 4, **SHORT), linear(*singles, 4, **SHORT)
    assert one.metrics == other.metrics


def test_held_out_rows_are_a_share_of_each_class_by_the_seed() -> None:
    labels = torch.tensor([0] * 40 + [1] * 12 + [2] * 4 + [3])
    kept, held = hold_out(labels, 5, 0.1, seed=0)
    assert torch.bincount(labels[held], minlength=5).tolist() == [4, 1, 0, 0, 0]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(57))
    assert torch.equal(held, hold_out(labels, 5, 0.1, seed=0)[1])
    assert not torch.equal(held, hold_out(labels, 5, 0.1, seed=1)[1])
    assert torch.bincount(labels[hold_out(labels, 5, 0.5, seed=0)[1]], minlength=5).tolist() == [20, 6, 2, 0, 0]


def test_moments_do_not_cancel_and_constant_features_stay_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "CHUNK_ROWS", 7)
    rows = 1e6 + torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, deviation = moments(rows)
    np.testing.assert_allclose(mean, rows.numpy().mean(0), rtol=1e-14)
    np.testing.assert_allclose(deviation, rows.numpy().std(0), rtol=1e-9)
    rows = torch.full((50, 3), 0.1)
    assert Scaling.of("standardize", rows, CPU)(rows).abs().max() < 1e-6


def test_shares_of_classes_are_those_of_softmax_and_large_scores_do_not_overflow() -> None:
    logits = (
        30 * torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(0)) + torch.tensor([0, 1e4, -1e4])[:, None]
    )
    shares, norm = softmax(logits)
    torch.testing.assert_close(shares, logits.softmax(dim=1))
    torch.testing.assert_close(norm, logits.logsumexp(dim=1))


def test_batch_norm_is_that_of_the_network_in_front_of_a_linear_layer() -> None:
    rows = random_set(40, 0).features
    scaling, norm = Scaling.of("batch_norm", rows, CPU), nn.BatchNorm1d(6, affine=False, momentum=1.0)
    torch.testing.assert_close(scaling.in_training(rows[:9]), norm(rows[:9]))
    norm(rows)
    norm.running_var *= 39 / 40  # torch keeps the unbiased one
    torch.testing.assert_close(scaling(rows[:9]), norm.eval()(rows[:9]), rtol=1e-4, atol=1e-5)


def test_of_equal_hits_the_smaller_loss_is_best_and_lost_weights_are_never() -> None:
    shares, losses = torch.tensor([0.5, 0.9, 0.9, 1.0]), torch.tensor([1.0, 0.7, 0.6, torch.nan])
    assert best_of(shares, losses) == 2
    assert best_of(shares[:2], torch.tensor([1.0, 1.0])) == 1
    assert best_of(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0])) == 0
    assert best_of(shares[:1], torch.tensor([torch.inf])) is None


def labelled(*counts: int) -> Labelled:
    names = tuple(f"class {place}" for place in range(len(counts)))
    return Labelled(sum(counts), 10, names, np.array(counts, dtype=np.int64))


def test_settings_that_cannot_be_chosen_between_are_refused_before_anything_is_trained() -> None:
    assert Linear.fit_to(Linear.Config(), labelled(5, 1)) == (Linear.Config(), [])
    with pytest.raises(ConfigError, match=r"holdout=0.1 holds out none of the 8 training images of 2"):
        Linear.fit_to(Linear.Config(), labelled(4, 4))
    one = Linear.Config(learning_rates=(0.1,))
    assert Linear.fit_to(one, labelled(1, 1)) == (one, [])
    with pytest.raises(ConfigError, match="holds out none of the"):
        linear(perfect_set(8, 0), perfect_set(8, 1), 4, holdout=0.01)


@pytest.mark.thorough
def test_broken_features_labels_and_rates_are_refused() -> None:
    train, test = random_set(40, 0), random_set(20, 1)
    broken = train.features.clone()
    broken[3, 2] = torch.inf
    with pytest.raises(ConfigError, match="1 of 40 train rows have features that are not finite"):
        linear(FeatureSet(broken, train.labels), test, 4)
    with pytest.raises(ConfigError, match="1 of 40 train layer3 rows have features that are not finite"):
        linear(FeatureSet(train.features, train.labels, {"layer3": broken}), test, 4)
    with pytest.raises(ConfigError, match="train labels range from 0 to 3, outside 0 to 2"):
        linear(train, test, 3)
    huge = FeatureSet(train.features * 1e17, train.labels)
    with pytest.raises(ConfigError, match="grew without bound at every learning rate, the least of which is 1e"):
        linear(huge, test, 4, normalize="none", learning_rates=(1e9, 1e8))


def test_a_batch_is_all_that_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    most: list[int] = []
    of_rows = scaling.rows_of

    def watched(features: torch.Tensor, index: torch.Tensor, device: torch.device) -> torch.Tensor:
        most.append(len(index))
        return of_rows(features, index, device)

    monkeypatch.setattr(scaling, "CHUNK_ROWS", 11)
    monkeypatch.setattr(scaling, "rows_of", watched)
    monkeypatch.setattr(probes, "rows_of", watched)
    linear(train, test, 4, **SHORT)
    assert max(most) == 15
