"""Benchmarks on features that are on the CPU, on a GPU, or one set on each."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch

from raysl.benchmarks.benchmark import Benchmark, Context, FeatureSet
from raysl.benchmarks.clustering import Clustering
from raysl.benchmarks.knn import KNN, knn_probabilities
from raysl.benchmarks.linear import Linear
from raysl.benchmarks.low_shot import LowShot
from raysl.benchmarks.neighbours import _faiss_sees_gpu, nearest_rows
from raysl.benchmarks.retrieval import Retrieval
from raysl.benchmarks.suite.tasks import _on_gpu
from tests.fake_gpu.pretended import needs_pretended_gpu, pretended_gpu
from tests.fake_gpu.watch import TO_GPU, TO_HOST, Watch, is_on_gpu
from tests.tiers import each

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


@pytest.mark.thorough
@pytest.mark.parametrize(("train", "test"), PLACES)
@pytest.mark.parametrize("name", each(CASES, now=("knn",)))
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


@pytest.fixture
def faiss() -> Iterator[Any]:
    """faiss, asked anew whether it sees a GPU."""
    _faiss_sees_gpu.cache_clear()
    yield pytest.importorskip("faiss")
    _faiss_sees_gpu.cache_clear()


@pytest.mark.parametrize(("train", "test"), PLACES)
def test_faiss_searches_on_the_gpu_where_it_sees_one(
    watch: Watch, faiss: Any, monkeypatch: pytest.MonkeyPatch, train: str, test: str
) -> None:
    keys, queries = features(100, train).features, features(20, test).features
    asked = []

    def search(memory: Any, queries: torch.Tensor, keys: torch.Tensor, k: int, metric: int) -> Any:
        asked.append((tuple(queries.shape), tuple(keys.shape), is_on_gpu(queries) and is_on_gpu(keys)))
        return queries.new_zeros(len(queries), k), torch.zeros(len(queries), k, dtype=torch.int64, device="cuda")

    for name, stand_in in {"get_num_gpus": lambda: 1, "knn_gpu": search}.items():
        monkeypatch.setattr(faiss, name, stand_in, raising=False)
    monkeypatch.setattr("raysl.benchmarks.neighbours._gpu_memory", object)
    monkeypatch.setitem(sys.modules, "faiss.contrib.torch_utils", ModuleType("torch_utils"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    watch.clear()
    found = list(nearest_rows(keys, queries, k=5, chunk_rows=20, backend="faiss"))
    on_gpu = "cuda" in (train, test)
    assert asked == ([((20, 8), (80, 8), True), ((20, 8), (20, 8), True)] if on_gpu else [])
    assert {is_on_gpu(part) for parts in found for part in parts} == {test == "cuda"}
    to_host = sum(event.num_bytes for event in watch.events if event.kind == TO_HOST)
    assert to_host == (20 * 5 * (4 + 8) if (train, test) == ("cuda", "cpu") else 0), "the neighbours alone"


def test_faiss_says_once_that_it_sees_no_gpu(
    watch: Watch, faiss: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    for places in (("cpu", "cpu"), ("cuda", "cuda"), ("cuda", "cuda")):
        keys, queries = (features(20, place).features for place in places)
        list(nearest_rows(keys, queries, k=5, backend="faiss"))
        told = [record.message for record in caplog.records if "faiss" in record.message]
        assert len(told) == (places[0] == "cuda")
    assert "set knn.backend=torch" in told[0]


def test_features_on_a_gpu_are_not_copied_to_queries_on_the_cpu(watch: Watch) -> None:
    keys, queries = features(100, "cuda").features, features(4, "cpu").features
    watch.clear()
    list(nearest_rows(keys, queries, k=5, backend="torch"))
    assert [event.num_bytes for event in watch.events if event.kind == TO_HOST] == [4 * 5 * 4, 4 * 5 * 8]


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
