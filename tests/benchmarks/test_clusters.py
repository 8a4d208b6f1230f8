"""Clusters of a dataset, to disk, and a run that learns from them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from raysl.benchmarks.clusters import cluster_images
from raysl.benchmarks.features.extract import extract
from raysl.config.load import load_config
from raysl.data.assignments import read_assignments
from raysl.errors import ConfigError
from raysl.methods.clusterfit import ClusterFit
from raysl.plan.setup import Setup
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.console import Console

WORDS = ("backbone.num_stages=1", "backbone.width=4", "data.limit=70", "benchmarks=[]")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    config = load_config("quickstart", [*WORDS, "method.hidden_dim=8", "method.output_dim=4", "train.batch_size=3"])
    folder = tmp_path / "run" / "checkpoint_000000000"
    TrainState.create(Setup.of(config, 70, 10)).save(folder, {})
    return str(folder.parent)


def test_images_are_clustered_by_the_directions_of_their_features(saved: str, shared_ray: None) -> None:
    found = cluster_images(saved, ["k=5", "iters=30"])
    clusters = found.assignments.clusters
    rows = F.normalize(extract(saved, split="train").features, dim=1)
    means = torch.stack([rows[clusters == k].mean(dim=0) for k in range(5)])
    assert torch.equal(torch.cdist(rows, means).argmin(dim=1), clusters)
    assert found.path == f"{saved}/checkpoint_000000000/clusters_5.parquet"
    table = pq.read_table(found.path)
    assert table.column_names == ["index", "name", "cluster"]
    assert table["index"].to_pylist() == list(range(70))
    assert table["cluster"].to_pylist() == clusters.tolist()


def test_a_run_learns_from_the_file_of_its_own_images_alone(
    saved: str, tmp_path: Path, console: Console, shared_ray: None
) -> None:
    out = str(tmp_path / "c.parquet")
    code, told, _ = console("cluster", "--checkpoint", saved, "k=5", "pca_dim=2", "--out", out)
    assert code == 0
    assert "(70 images in 5 clusters of " in told
    words = [*WORDS, f"method.assignments={out}", "method.clusters=5", "train.batch_size=8"]
    run = prepare(load_config("digits/clusterfit", words))
    state = TrainState.create(run.setup)
    assert isinstance(state.method, ClusterFit)
    state.method.before_epoch(run.setup.plan.step(0), lambda: iter(()))
    assert torch.equal(state.method.assignments, read_assignments(out).clusters)
    with pytest.raises(ConfigError, match=r"the clusters are of 70 images .* the run has 60"):
        prepare(load_config("digits/clusterfit", [*words, "data.limit=60"]))
    with pytest.raises(ConfigError, match="cluster the images of the run: raysl cluster"):
        prepare(load_config("digits/clusterfit", [*words, "data.skip=1"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["k=71"], "k=71 is more than the 70 images; give fewer clusters"),
        (["k=0"], r"cluster\.k: 0 is out of range"),
        (["clusters=5"], r"cluster\.clusters"),
    ],
)
def test_what_cannot_be_clustered_is_refused(saved: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_images(saved, words)
