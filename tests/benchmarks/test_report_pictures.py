"""The pictures of a report."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.suite import pictures
from raysl.benchmarks.suite.evaluate import benchmark
from raysl.benchmarks.suite.pictures import Pictured
from raysl.benchmarks.suite.report import _backbone_title
from raysl.config.load import load_config
from raysl.data.sources.synthetic import Synthetic
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState

SMALL = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("backbone=resnet", "backbone.depth=18"), "resnet, depth 18 (0.00 M weights)"),
        (("backbone=vit", "backbone.size=nano", "backbone.depth=2"), "vit, size nano (0.00 M weights)"),
        (("backbone=torchvision", "backbone.model=swin_t"), "torchvision, model swin_t (0.00 M weights)"),
        (("backbone=alexnet",), "alexnet (0.00 M weights)"),
    ],
)
def test_the_title_of_a_backbone_says_which_of_its_kind_it_is(words: tuple[str, ...], title: str) -> None:
    loaded = SimpleNamespace(config=load_config("quickstart", words), backbone=torch.nn.Linear(3, 3))
    assert _backbone_title(loaded) == title  # type: ignore[arg-type]


def test_neighbours_are_the_most_similar_others_and_never_the_query() -> None:
    data = Synthetic.Config(num_test=50, image_size=8)
    split = Synthetic(data).required("test")
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    features[20:32] = features[20]  # more equal images than neighbours
    shown = pictures.neighbours(Pictured(split, FeatureSet(features, torch.arange(50) % 10), True), data)
    assert shown is not None
    queries = pictures._spread_queries(np.arange(50) % 10)
    cosines = torch.nn.functional.normalize(features, dim=1)[queries] @ torch.nn.functional.normalize(features).T
    cosines[torch.arange(len(queries)), torch.from_numpy(queries)] = -2.0
    assert np.allclose(shown.similarities, cosines.topk(8, dim=1).values, atol=1e-6)
    assert (shown.similarities > -2).all()
    assert shown.images.shape == (10, 8, 8, 8, 3)


def test_the_query_itself_is_left_out_among_equal_images() -> None:
    rows, similarities = pictures._nearest_others(torch.ones(12, 3), np.array([11, 0]), 4)
    assert rows.shape == similarities.shape == (2, 4)
    assert 11 not in rows[0]
    assert 0 not in rows[1]


def test_the_pictures_of_a_report_read_a_unit_of_a_large_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_ray: None
) -> None:
    words = ["data=synthetic", "data.is_random_access=false", "data.unit_rows=16", "data.num_train=320"]
    words += ["data.image_size=8", "data.num_test=160", "train.batch_size=60", f"storage={tmp_path}", "name=run"]
    config = load_config("quickstart", [*SMALL, *words, "benchmarks=[knn]"])
    folder = RunFolder.of(config)
    folder.claim(config)
    TrainState.create(Setup.of(config, 320, 10)).save(Path(folder.path) / "checkpoint_000000000", {})
    split_type = type(Synthetic(Synthetic.Config()).required("train"))
    read, rows = split_type.read, list[int]()

    def noted(self: object, index: np.ndarray) -> object:
        rows.extend(index.tolist())
        return read(self, index)  # type: ignore[arg-type]

    monkeypatch.setattr(split_type, "read", noted)
    benchmark(folder.uri, ["knn"])
    assert len(rows) == pictures.NUM_VIEWED, "only the views are made of images that are read again"
    assert len({row // 16 for row in rows}) == 1
