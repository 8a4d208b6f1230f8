import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.classifiers import logistic_fit, scaling
from raysl.benchmarks.classifiers.classification import hold_out
from raysl.benchmarks.classifiers.logistic_fit import fit_logistic
from raysl.benchmarks.classifiers.scaling import Scaling
from raysl.benchmarks.logistic import Logistic
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set
from tests.benchmarks.test_linear import perfect_set, top1


def logistic(train: FeatureSet, test: FeatureSet, num_classes: int, **settings: object) -> Findings:
    return Logistic(Logistic.Config(**settings)).run(train, test, num_classes, seed=0)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_and_biases_are_those_of_scikit_learn_at_every_c(dtype: torch.dtype) -> None:
    rows = random_set(80, seed=0)
    features, index, costs = rows.features.to(dtype), torch.arange(5, 80), (0.01, 1.0, 100.0)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    found, is_done = fit_logistic(features, rows.labels, index, 4, costs, Scaling("none"), tolerance, 2000)
    assert is_done.all()
    for place, cost in enumerate(costs):
        other = LogisticRegression(C=cost, tol=1e-10, max_iter=5000)
        other.fit(features[index].double().numpy(), rows.labels[index].numpy())
        own = slice(4 * place, 4 * place + 4)
        rtol, atol = (1e-5, 1e-6) if dtype == torch.float64 else (1e-2, 5e-3)
        np.testing.assert_allclose(found.weight[own], other.coef_, rtol=rtol, atol=atol)
        np.testing.assert_allclose(found.bias[own], other.intercept_, rtol=rtol, atol=atol)


@pytest.mark.thorough
def test_it_is_as_right_as_scikit_learn_on_raw_digits() -> None:
    train, test = digits()
    found = logistic(train, test, 10, normalize="none", costs=(1.0,), tolerance=1e-6, max_iter=1000)
    other = LogisticRegression(C=1.0, tol=1e-6, max_iter=1000).fit(train.features.numpy(), train.labels.numpy())
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, other.predict_proba(test.features.numpy()), atol=5e-3)
    assert top1(found) == pytest.approx(100 * other.score(test.features.numpy(), test.labels.numpy()))


@pytest.mark.thorough
def test_c_is_the_best_on_held_out_rows_and_then_all_are_learned_from() -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    costs = (1e-4, 0.1, 100.0)
    found = logistic(train, test, 4, costs=costs, normalize="none", holdout=0.3)
    kept, held = hold_out(train.labels, 4, 0.3, seed=0)
    shares = []
    for cost in costs:
        other = LogisticRegression(C=cost, max_iter=1000).fit(train.features[kept].numpy(), train.labels[kept].numpy())
        shares.append(100 * other.score(train.features[held].numpy(), train.labels[held].numpy()))
    (curve,) = found.figures["curves"].values()
    assert curve["lines"]["features"] == [pytest.approx(pair) for pair in zip(costs, shares, strict=True)]
    alone = logistic(train, test, 4, costs=(costs[int(np.argmax(shares))],), normalize="none")
    assert found.scores is not None
    assert alone.scores is not None
    assert torch.equal(found.scores, alone.scores)


@pytest.mark.thorough
@pytest.mark.parametrize("normalize", ["none", "l2", "standardize"])
def test_perfect_features_give_100_and_random_ones_chance(normalize: str) -> None:
    assert top1(logistic(perfect_set(80, 0), perfect_set(60, 1), 4, normalize=normalize)) == 100
    noise = FeatureSet(torch.randn(2000, 6, generator=torch.Generator().manual_seed(0)), random_set(2000, 1).labels)
    assert top1(logistic(random_set(400, 0), noise, 4, normalize=normalize)) == pytest.approx(25, abs=4)


@pytest.mark.thorough
def test_chunks_change_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    whole = logistic(train, test, 4)
    monkeypatch.setattr(scaling, "CHUNK_ROWS", 7)
    parts = logistic(train, test, 4)
    assert whole.scores is not None
    assert parts.scores is not None
    torch.testing.assert_close(whole.scores, parts.scores, rtol=1e-2, atol=1e-3)
    assert whole.metrics == parts.metrics


@pytest.mark.thorough
def test_stages_have_metrics_of_their_own() -> None:
    train, test = random_set(90, 0), random_set(50, 1)
    config = Logistic.Config(stages=("layer3",))
    assert Logistic.stages(config) == ("", "layer3")
    sets = [FeatureSet(rows.features, rows.labels, {"layer3": 0 * rows.features}) for rows in (train, test)]
    found = by_name(Logistic(config).run(*sets, 4, 0).metrics)
    assert list(found) == Logistic.metrics(config, 4)
    names = ["top1", "mean_per_class", "macro_f1"]
    assert list(found) == [*names, *(f"{name}_layer3" for name in names)]
    most = torch.bincount(test.labels).max().item()
    assert found["top1_layer3"].value <= 100 * most / 50 < found["top1"].value


def test_what_cannot_be_chosen_or_is_broken_is_refused() -> None:
    few = Labelled(8, 10, ("a", "b"), np.array([4, 4], dtype=np.int64))
    with pytest.raises(ConfigError, match=r"holdout=0.1 holds out none of the 8 training images of 2 classes"):
        Logistic.fit_to(Logistic.Config(), few)
    one = Logistic.Config(costs=(1.0,))
    assert Logistic.fit_to(one, few) == (one, [])
    train, test = random_set(40, 0), random_set(20, 1)
    with pytest.raises(ConfigError, match="40 of 40 train rows have features that are not finite"):
        logistic(FeatureSet(train.features * torch.nan, train.labels), test, 4)
    with pytest.raises(ConfigError, match="holds out none of the"):
        logistic(train, test, 4, holdout=0.001)


@pytest.mark.thorough
def test_rows_that_are_scaled_anew_in_each_pass_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_set(1500, 0), random_set(20, 1)
    kept = logistic(train, test, 4)
    monkeypatch.setattr(logistic_fit, "MOST_KEPT", 0)
    monkeypatch.setattr(scaling, "CHUNK_ROWS", 100)
    monkeypatch.setattr(logistic_fit, "CHUNK_ROWS", 100)
    anew = logistic(train, test, 4)
    assert kept.scores is not None
    assert anew.scores is not None
    torch.testing.assert_close(anew.scores, kept.scores, rtol=1e-3, atol=1e-4)
