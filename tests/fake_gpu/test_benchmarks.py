"""Benchmarks on features that are on the CPU, on a GPU, or one set on each."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from raysl.benchmarks.benchmark import Benchmark, Context, FeatureSet
from raysl.benchmarks.clustering import Clustering
from raysl.benchmarks.knn import KNN, knn_probabilities
from raysl.benchmarks.linear import Linear
from raysl.benchmarks.low_shot import LowShot
from raysl.benchmarks.neighbours import nearest_rows
from raysl.benchmarks.retrieval import Retrieval
from raysl.benchmarks.suite.side_by_side import _on_gpu
from tests.fake_gpu.pretended import needs_pretended_gpu, pretended_gpu
from tests.fake_gpu.watch import TO_GPU, Watch, is_on_gpu

pytestmark = needs_pretended_gpu

PLACES = [("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")]
CASES: dict[str, Benchmark] = {
    "knn": KNN(KNN.Config(k=(3, 5), labels=(2,))),
    "knn by torch": KNN(KNN.Config(k=(3,), backend="torch", similarity="euclidean", weights="inverse")),
    "knn by faiss": KNN(KNN.Config(k=(3,), backend="faiss")),
    "low_shot": LowShot(LowShot.Config(shots=(2,), draws=2)),
    "clustering": Clustering(Clustering.Config(restarts=1, iters=2)),
    "retrieval": Retrieval(Retrieval.Config()),
    "linear": Linear(Linear.Config(learning_rates=(0.1,), epochs=1, min_updates=1)),
}


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(
        FeatureSet, "check", lambda *_: None
    )  # numbers that are read are 1: one row would not be finite
    monkeypatch.setattr(FeatureSet, "check_finite", lambda *_: None)
    with pretended_gpu() as watch:
        yield watch


def features(num: int, device: str) -> FeatureSet:
    """Images of one class, whose labels stay right when they are read from a GPU without numbers."""
    random = torch.Generator().manual_seed(num)
    return FeatureSet(torch.randn(num, 8, generator=random), torch.zeros(num, dtype=torch.int64)).to(device)


@pytest.mark.parametrize(("train", "test"), PLACES)
@pytest.mark.parametrize("name", CASES)
def test_features_may_be_on_any_device(watch: Watch, name: str, train: str, test: str) -> None:
    context: Any = Context.__new__(Context)
    for field, value in {"train": features(40, train), "test": features(20, test), "num_classes": 1, "seed": 0}.items():
        object.__setattr__(context, field, value)
    metrics = CASES[name].measure(context)
    assert metrics
    assert watch.errors == []


@pytest.mark.parametrize("backend", ["torch", "faiss"])
@pytest.mark.parametrize(("train", "test"), PLACES)
def test_neighbours_come_to_the_device_of_the_queries(watch: Watch, backend: Any, train: str, test: str) -> None:
    keys, queries = features(100, train).features, features(20, test).features
    watch.clear()
    found = next(iter(nearest_rows(keys, queries, k=5, chunk_rows=20, backend=backend)))
    assert [tuple(part.shape) for part in found] == [(20, 5)] * 2
    assert {is_on_gpu(part) for part in found} == {test == "cuda"}
    assert watch.errors == []


def test_training_features_on_the_cpu_go_to_the_gpu_in_chunks(watch: Watch) -> None:
    keys, queries = features(100, "cpu").features, features(4, "cuda").features
    watch.clear()
    list(nearest_rows(keys, queries, k=5, chunk_rows=5))
    copies = [event.num_bytes for event in watch.events if event.kind == TO_GPU]
    assert copies == [20 * 8 * 4] * 5


def test_shares_of_a_vote_need_no_common_device(watch: Watch) -> None:
    knn_probabilities(features(40, "cpu"), features(20, "cuda").features, num_classes=1)
    assert watch.errors == []


@pytest.mark.parametrize(
    ("room", "streams", "places"),
    [
        (10_000, False, ("cuda", "cuda")),
        (1500, False, ("cpu", "cpu")),  # the training features do not fit beside the others
        (1500, True, ("cpu", "cuda")),
        (100, True, ("cpu", "cpu")),
    ],
)
def test_features_go_to_the_gpu_together_or_stay(
    watch: Watch, room: int, streams: bool, places: tuple[str, str]
) -> None:
    placed = _on_gpu(features(40, "cpu"), features(20, "cpu"), streams, room)
    assert tuple(part.features.device.type for part in placed if part is not None) == places
    assert _on_gpu(None, None, streams, room) == (None, None)
