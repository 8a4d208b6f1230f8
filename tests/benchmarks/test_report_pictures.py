"""The pictures of a report."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.suite import pictures
from raysl.benchmarks.suite.evaluate import benchmark
from raysl.benchmarks.suite.pictures import Pictured
from raysl.benchmarks.suite.report import _backbone_title
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.config.load import load_config
from raysl.data.source import make_source
from raysl.data.sources.synthetic import Synthetic
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.class_attention import class_attention
from raysl.nn.patch_maps import patch_maps
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState, initial_backbone, untrained_backbone
from raysl.transforms import normalize

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
    num_patched = pictures.NUM_QUERIES
    assert len(rows) == num_patched + pictures.NUM_VIEWED, "patches and views are made of images that are read again"
    for part in (rows[:num_patched], rows[num_patched:]):
        assert len({row // 16 for row in part}) == 1


def saved(folder: Path, *words: str, name: str = "digits/mae", is_changed: bool = True) -> Checkpoint:
    """A checkpoint, with random weights where it counts as trained."""
    config = load_config(name, [*words, "benchmarks=[]"])
    state = TrainState.create(Setup.of(config, 40, 10))
    if is_changed:
        generator = torch.Generator().manual_seed(1)
        for parameter in state.method.export().parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    state.step = 7
    state.save(folder / "checkpoint_000000007", {})
    return load_checkpoint(str(folder / "checkpoint_000000007"))


def pictured_of(data: Any) -> Pictured:
    split = make_source(data).required("test")
    labels = torch.from_numpy(split.labels_of(np.arange(split.num_samples)))
    return Pictured(split, FeatureSet(torch.zeros(len(labels), 2), labels), True)


@pytest.mark.thorough
def test_patches_are_those_of_one_image_of_each_class_before_and_after_training(tmp_path: Path) -> None:
    loaded = saved(tmp_path)
    data = loaded.config.data
    shown = pictures.patches(loaded, pictured_of(data), data, lambda: untrained_backbone(loaded))
    assert shown is not None
    titles = [network.title for network in shown.networks]
    assert titles == ["before training, random weights of seed 0", "after training, step 7"]
    assert shown.images.shape == (10, 16, 16, 3)
    assert (shown.stage, shown.is_held_out, shown.notes) == ("tokens", True, [])
    labels = pictured_of(data).labels[pictures._spread_queries(pictured_of(data).labels)]
    assert sorted(labels) == list(range(10))
    images = torch.from_numpy(shown.images).permute(0, 3, 1, 2)
    normal = normalize(images, data.mean, data.std)
    for network, backbone in zip(shown.networks, (untrained_backbone(loaded), loaded.backbone), strict=True):
        maps = patch_maps(backbone, normal)
        assert np.array_equal(network.colors, maps.colors().numpy())
        assert np.array_equal(network.foreground, maps.colors(foreground=True).numpy())
        assert network.attention is not None
        assert np.allclose(network.attention, class_attention(backbone, normal))
        codes = network.codes[1, 2, 3]
        assert np.allclose(network.codes @ codes, maps.similarities(1, 2, 3), atol=1e-5)
    assert not np.array_equal(shown.networks[0].colors, shown.networks[1].colors)


@pytest.mark.thorough
def test_a_run_that_began_with_weights_is_shown_beside_them_while_they_are_there(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    loaded = saved(tmp_path / "mine", f"method.weights={tmp_path}/source")
    data = loaded.config.data
    begun = initial_backbone(loaded)
    for name, value in source.backbone.state_dict().items():
        assert torch.equal(begun.state_dict()[name], value)

    def untrained() -> Backbone:
        raise AssertionError("random weights are not those that the run began with")

    shown = pictures.patches(loaded, pictured_of(data), data, untrained)
    assert shown is not None
    assert shown.networks[0].title.startswith("before training, weights of ")
    assert shown.networks[0].title.endswith("source/checkpoint_000000007")
    saved(tmp_path / "source", "seed=4")
    changed = pictures.patches(loaded, pictured_of(data), data, untrained)
    assert changed is not None
    assert len(changed.networks) == 1
    assert "have changed since the run began with them" in changed.notes[0]
    shutil.rmtree(tmp_path / "source")
    gone = pictures.patches(loaded, pictured_of(data), data, untrained)
    assert gone is not None
    assert gone.networks[0].title == "after training, step 7"
    assert gone.notes[0].startswith("The network before training is not shown, since its weights cannot be read: ")


@pytest.mark.thorough
def test_patches_can_be_left_out_and_are_where_maps_are_too_small(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    off = saved(tmp_path / "off", "train.patch_pictures=false")
    assert pictures.patches(off, pictured_of(off.config.data), off.config.data, lambda: off.backbone) is None
    words = ["backbone.stem=imagenet", *SMALL]
    small = saved(tmp_path / "small", *words, name="quickstart")
    with caplog.at_level("INFO"):
        assert pictures.patches(small, pictured_of(small.config.data), small.config.data, lambda: small.backbone)
    narrow = saved(tmp_path / "narrow", "data.image_size=4", *words, name="quickstart")
    data = narrow.config.data
    with caplog.at_level("INFO"):
        assert pictures.patches(narrow, pictured_of(data), data, lambda: narrow.backbone) is None
    assert "the report has no pictures of patches: this ResNet has no map with 4 x 4 places" in caplog.text
