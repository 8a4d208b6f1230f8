"""The kNN that is measured while training goes on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raysl.benchmarks.benchmark import FeatureSet, by_name
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.online_knn import OnlineKNN
from raysl.benchmarks.suite.fitting import MeasuredImages, check_benchmarks
from raysl.config.load import load_config
from raysl.data.order import Order
from raysl.data.source import make_source
from raysl.data.sources.digits import Digits
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Run
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import evaluation_recipe
from tests.methods.properties import small
from tests.rank_processes import RunRanks

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


def measured(num_train: int, num_test: int) -> dict[str, float]:
    """What the callback logs at the end of an epoch on so many digits."""
    config = load_config("quickstart", [*SETTINGS, "train.batch_size=8"])
    source = Digits(Digits.Config(limit=num_train))
    train, test = source.required("train"), Digits(Digits.Config(limit=num_test)).required("test")
    recipe = evaluation_recipe(16, 16)
    order = Order(seed=0, fingerprint="", unit_sizes=train.unit_sizes, batch_size=1, lanes=1, window=8, is_exact=True)
    loader = Loader(train, recipe, order, config.data.mean, config.data.std, False, recipe)
    state = TrainState.create(Setup.of(config, 64, 10))
    run = Run(state, TrainPlan.from_config(config, 64))
    online = OnlineKNN(loader, test, 10, Duration.parse("1ep"))
    online.on_train_start(run)
    untrained = dict(run.line)
    online.on_epoch_end(run, Step(8, 8, 8))
    assert run.line == untrained
    return untrained


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["benchmarks={knn: {k: [7, 3], temperature: 0.5, interpolation: bilinear}}"],
        ["benchmarks={knn: {k: [3], weights: inverse, similarity: euclidean}}"],
        ["benchmarks=[]"],
    ],
)
def test_the_online_knn_is_the_vote_of_the_runs_benchmark_on_the_same_images(words: list[str]) -> None:
    config = load_config("quickstart", [*SETTINGS, "train.batch_size=8", "data.limit=60", *words])
    run = prepare(config, check_benchmarks)
    state = TrainState.create(run.setup, classes=run.classes)
    assert run.online_knn is not None
    assert run.test is not None
    seen = Run(state, run.setup.plan)
    reader = LocalBatches(replace(run.loader, held_out=run.test)).chosen
    run.online_knn(run.loader, run.test, 10, Duration.parse("1ep"), reader, False).on_train_start(seen)
    benchmark = config.benchmarks.get("knn", KNN.Config())
    assert isinstance(benchmark, KNN.Config)
    images = MeasuredImages(config.data, run.loader.split, run.test).resized(benchmark.interpolation)
    backbone, cpu = state.exported().eval(), torch.device("cpu")
    sets = []
    for split in (images.train, run.test):
        embedded = embed({"": backbone}, split, np.arange(split.num_samples), images.data, cpu)
        sets.append(FeatureSet(torch.from_numpy(np.asarray(embedded.features[""])), torch.from_numpy(embedded.labels)))
    offline = by_name(KNN(replace(benchmark, backend="torch")).run(*sets, 10, seed=0).metrics)
    assert seen.line == {f"knn_k{k}_top1": offline[f"k{k}/top1"].value for k in benchmark.k}


def ranks_of(num: int) -> dict[str, float]:
    """What the callback logs of SimCLR's untrained network on so many digits."""
    run = small("simclr", f"data.limit={num}", "train.batch_size=6", "data.lanes=3", "data.drop_last=true")
    state = TrainState.create(run.setup, classes=run.classes)
    seen = Run(state, run.setup.plan)
    test = make_source(run.config.data).required("test")
    OnlineKNN(run.loader, test, 10, Duration.parse("1ep"), has_ranks=True).on_train_start(seen)
    return dict(seen.line)


@pytest.mark.thorough
def test_ranks_are_those_of_all_features_and_of_two_views_of_each_image() -> None:
    run = small("simclr", "data.limit=40", "train.batch_size=6", "data.lanes=3", "data.drop_last=true")
    backbone = TrainState.create(run.setup, classes=run.classes).method.export().eval()
    cpu = torch.device("cpu")
    with torch.no_grad():
        loaded = run.loader.load_plain(run.loader.split, np.arange(40), interpolation="bicubic")
        plain = run.loader.finish_plain(loaded, cpu)
        h = backbone(plain.views["image"][:, 0]).double()
        (seen,) = run.loader.seen_batches(run.loader.split, 0, 40, cpu)
        z = torch.stack([backbone(seen.views["global"][:, view]) for view in (0, 1)], dim=1).double()  # [B, 2, D]
    shares = torch.linalg.svdvals(h)
    shares = shares / shares.sum() + 1e-7
    mean = z.mean(dim=1)
    within = sum(torch.outer(d, d) for row, m in zip(z, mean, strict=True) for d in row - m) / 80
    between = sum(torch.outer(d, d) for d in mean - mean.mean(dim=0)) / 40
    values, vectors = torch.linalg.eigh(within + 1e-4 * torch.eye(z.shape[2], dtype=torch.float64))
    root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    spread = torch.linalg.eigvalsh(root @ between @ root).clamp_min(0)
    spread = spread / spread.sum() + 1e-7
    found = ranks_of(40)
    assert found["rankme"] == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-4)
    assert found["lidar"] == pytest.approx(float((-(spread * spread.log()).sum()).exp()), rel=1e-3)


def test_ranks_are_the_same_on_any_number_of_workers(run_ranks: RunRanks) -> None:
    expected = ranks_of(9)
    assert set(expected) == {"knn_k20_top1", "rankme", "lidar"}
    for found in run_ranks(3, ranks_of, 9):
        assert found == pytest.approx(expected, rel=1e-4)


def measured_each(*sizes: tuple[int, int]) -> list[float]:
    return [measured(num_train, num_test)["knn_k20_top1"] for num_train, num_test in sizes]


def test_ranks_without_images_change_nothing(run_ranks: RunRanks) -> None:
    sizes = ((40, 2), (2, 5))
    alone = measured_each(*sizes)
    assert all(0 <= accuracy <= 100 for accuracy in alone)
    for accuracies in run_ranks(3, measured_each, *sizes):
        assert accuracies == pytest.approx(alone)
