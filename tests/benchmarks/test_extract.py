"""Features of a dataset, to disk."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
import torch
import torchvision.transforms.v2.functional as vision
from torchvision.transforms.v2 import InterpolationMode

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features import extraction
from raysl.benchmarks.features.embedding import read_rows
from raysl.benchmarks.features.extract import _choose_split, extract
from raysl.benchmarks.features.extraction import _basis
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite.evaluate import benchmark
from raysl.benchmarks.suite.settings import load_data
from raysl.checkpoint.backbone import load_backbone, load_checkpoint
from raysl.config.load import load_config
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from tests.data.samples import png
from tests.data.sources.test_coco import dataset

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a run on images with several labels each; its data is behind a URI with credentials."""
    dataset(tmp_path / "images")
    words = ["data=coco", f"data.path=file://{tmp_path}/images?token=SeCrEt", "data.image_size=8", "benchmarks=[]"]
    state = TrainState.create(Setup.of(load_config("quickstart", [*SETTINGS, *words, "train.batch_size=3"]), 3, 3))
    folder = tmp_path / "run" / "checkpoint_000000000"
    state.save(folder, {})
    return folder


def test_several_labels_an_image_are_extracted_beside_its_features(saved: Path, shared_ray: None) -> None:
    found = extract(str(saved.parent), split="train")
    assert found.features.shape == (3, load_backbone(str(saved)).feature_dim)
    assert found.labels.tolist() == [[1, 0, 0], [0, 0, 0], [-1, 0, 1]]
    assert found.path == str(saved / "features_train.parquet")
    table = pq.read_table(found.path)
    assert table["label"].to_pylist() == found.labels.tolist()
    assert table["index"].to_pylist() == [0, 1, 2]
    assert torch.equal(torch.tensor(table["features"].to_pylist()), found.features)


def test_what_is_going_on_is_said_with_the_number_of_images_done(
    saved: Path, shared_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []
    counted: list[tuple[int, int, int]] = []
    monkeypatch.setattr("raysl.benchmarks.features.extract.enter", entered.append)
    monkeypatch.setattr(extraction, "count", lambda *numbers: counted.append(numbers))
    extract(str(saved), split="train", out=str(saved.parent / "out.parquet"))
    assert entered[:3] == ["reading the checkpoint", "listing the images", "starting Ray"]
    assert entered[3:] == ["computing features of 3 train images"]
    assert counted[-1] == (3, 3, 0)


def test_other_images_are_extracted_to_a_file_of_their_own(saved: Path, tmp_path: Path, shared_ray: None) -> None:
    for name, shade in (("a", 1), ("b", 2)):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "0.png").write_bytes(png(shade))
    words = ["data=image_folder", f"data.path={tmp_path}/other"]
    found = extract(str(saved), split="train", overrides=words)
    assert found.labels.tolist() == [0, 1]
    (path,) = saved.glob("features_*.parquet")
    assert re.fullmatch(r"features_image_folder-\w{6}_train\.parquet", path.name)
    own = ["data.limit=5", "data.image_size=24", "data.mean=[0, 0, 0]", "data.channels=bgr"]
    kept = load_data(load_config("quickstart", own), words)
    assert (kept.image_size, kept.mean, kept.channels, kept.limit) == (24, (0.0, 0.0, 0.0), "bgr", None)


def test_images_are_read_and_features_kept_by_how_images_are_resized() -> None:
    bilinear = Digits.Config(image_size=20)
    bicubic = replace(bilinear, eval_interpolation="bicubic")
    split = Digits(bilinear).required("train")
    rows = np.arange(3)
    plain = read_rows(split, rows, replace(bilinear, image_size=8)).views["image"]  # the digits as they are
    for data, mode in ((bilinear, InterpolationMode.BILINEAR), (bicubic, InterpolationMode.BICUBIC)):
        assert torch.equal(read_rows(split, rows, data).views["image"], vision.resize(plain, [20, 20], mode))
    kept = [_basis("weights", "", split, data, "code") for data in (bilinear, bicubic)]
    assert {name for name in kept[0] if kept[0][name] != kept[1][name]} == {"eval_interpolation"}


@pytest.mark.parametrize("split", ["foo", ""])
def test_an_unknown_split_is_refused(saved: Path, split: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"no split {split!r}; write train or test \(val means test\)\. Other held-out images"
    ):
        extract(str(saved), split=split)
    (saved.parents[1] / "flat").mkdir()
    (saved.parents[1] / "flat" / "0.png").write_bytes(png(0))
    with pytest.raises(ConfigError, match=r"the dataset 'image_folder' has no test images; .* by --split train"):
        extract(str(saved), split="test", overrides=["data=image_folder", f"data.path={saved.parents[1]}/flat"])
    with pytest.raises(ConfigError, match=r"'optim\.lr=1' is not a setting of the images"):
        extract(str(saved), overrides=["optim.lr=1"])


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "testing", "test"])
def test_the_held_out_split_has_the_names_of_other_libraries(saved: Path, name: str) -> None:
    (saved.parents[1] / "flat").mkdir()
    (saved.parents[1] / "flat" / "0.png").write_bytes(png(0))
    with pytest.raises(ConfigError, match=r"the dataset 'image_folder' has no test images"):
        extract(str(saved), split=name, overrides=["data=image_folder", f"data.path={saved.parents[1]}/flat"])


def test_the_only_split_of_other_images_is_taken_where_none_is_named(saved: Path) -> None:
    (saved.parents[1] / "flat").mkdir()
    (saved.parents[1] / "flat" / "0.png").write_bytes(png(0))
    loaded = load_checkpoint(str(saved))
    flat = load_data(loaded.config, [f"data={saved.parents[1]}/flat"])
    assert _choose_split(flat, loaded, None)[0] == "train"
    assert _choose_split(Digits.Config(), loaded, None)[0] == "test"
    assert _choose_split(Digits.Config(), loaded, "train")[0] == "train"


def test_benchmarks_refuse_several_labels_an_image_before_any_work(saved: Path) -> None:
    was_started = ray.is_initialized()
    with pytest.raises(ConfigError, match="the images of 'coco' have several labels each, and it needs one of each"):
        benchmark(str(saved), ["knn"])
    assert ray.is_initialized() == was_started
    rows = FeatureSet(torch.eye(3), torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="the train rows have several labels each"):
        KNN(KNN.Config()).run(rows, rows, 2, seed=0)


@pytest.mark.parametrize("labels", [torch.zeros(2), torch.zeros(2, 4), torch.zeros(3, 2, 2), torch.zeros(())])
def test_labels_of_another_shape_than_the_features_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"features must be \[N, D\] and labels \[N\] or \[N, K\]"):
        FeatureSet(torch.zeros(3, 2), labels)
