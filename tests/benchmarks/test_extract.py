"""Features of a dataset, to disk."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
import torch

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.evaluate import benchmark
from raysl.benchmarks.features import extract
from raysl.benchmarks.knn import KNN
from raysl.checkpoint import TrainState, load_backbone
from raysl.config.load import load_config
from raysl.data.batch import DataInfo
from raysl.errors import ConfigError
from tests.data.test_coco import dataset

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a run on images with several labels each; its data is behind a URI with credentials."""
    dataset(tmp_path / "images")
    words = ["data=coco", f"data.path=file://{tmp_path}/images?token=SeCrEt", "data.image_size=8", "benchmarks=[]"]
    state = TrainState.create(load_config("quickstart", [*SETTINGS, *words]), DataInfo(3, 3, 8))
    folder = tmp_path / "run" / "checkpoint_000000000"
    state.save(folder, {})
    return folder


def test_several_labels_an_image_are_extracted_beside_its_features(saved: Path) -> None:
    try:
        found = extract(str(saved.parent), split="train")
    finally:
        ray.shutdown()
    assert found.features.shape == (3, load_backbone(str(saved)).feature_dim)
    assert found.labels.tolist() == [[1, 0, 0], [0, 0, 0], [-1, 0, 1]]
    assert found.path == str(saved / "features_train.parquet")
    table = pq.read_table(found.path)
    assert table["label"].to_pylist() == found.labels.tolist()
    assert table["index"].to_pylist() == [0, 1, 2]
    assert torch.equal(torch.tensor(table["features"].to_pylist()), found.features)


def test_benchmarks_refuse_several_labels_an_image_before_any_work(saved: Path) -> None:
    with pytest.raises(ConfigError, match="the images of 'coco' have several labels each, which no benchmark measures"):
        benchmark(str(saved), ["knn"])
    assert not ray.is_initialized()
    rows = FeatureSet(torch.eye(3), torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="the train rows have several labels each"):
        KNN(KNN.Config()).run(rows, rows, 2, seed=0)


@pytest.mark.parametrize("labels", [torch.zeros(2), torch.zeros(2, 4), torch.zeros(3, 2, 2), torch.zeros(())])
def test_labels_of_another_shape_than_the_features_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"features must be \[N, D\] and labels \[N\] or \[N, K\]"):
        FeatureSet(torch.zeros(3, 2), labels)
