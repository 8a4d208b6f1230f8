import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.benchmarks import robustness
from raysl.benchmarks.benchmark import Context, FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.features.extraction import Wanted
from raysl.benchmarks.robustness import Robustness, features_of, top_hits
from raysl.benchmarks.shifted_sets import ShiftedSet
from raysl.config.schema import DataConfig
from raysl.data.source import Split
from raysl.data.sources.image_folder import ImageFolder
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.contexts import Flat, context_of
from tests.benchmarks.test_shifted_sets import WORDS, imagenet, object_net, save

CPU = torch.device("cpu")


def test_far_less_likely_classes_keep_their_order_behind_a_mask() -> None:
    logits = torch.tensor([[400.0, 1.0, 3.0, 2.0]])  # as shares the last three are all 0 in float32
    assert top_hits(logits, np.array([[2]]), np.array([1, 2, 3]), 1).item()
    assert not top_hits(logits, np.array([[1]]), np.array([1, 2, 3]), 2).item()


def test_hits_are_those_of_a_slow_loop() -> None:
    generator = np.random.default_rng(0)
    shares = generator.random((50, 8))
    right = generator.integers(-1, 8, (50, 3))
    for allowed in (None, np.array([1, 4, 5, 7])):
        for k in (1, 3, 5):
            slow = []
            for row, own in zip(shares, right, strict=True):
                order = [label for label in np.argsort(-row) if allowed is None or label in allowed][:k]
                slow.append(any(label in own for label in order))
            assert top_hits(torch.from_numpy(shares), right, allowed, k).tolist() == slow


def embedded(split: Split, context: Context) -> Tensor:
    return embed({"own": context.network}, split, np.arange(split.num_samples), context.data, CPU).features["own"]


def context_with(tmp_path: Path) -> Context:
    """Six classes that are shades of grey, and features that are the pixels."""
    data = ImageFolder.Config(path=str(imagenet(tmp_path / "imagenet")), image_size=8)
    context = context_of(Flat(), data, tmp_path / "work", num_classes=6)
    sets = {}
    for name, split in context.images.items():
        features = embedded(split, context)
        sets[name] = FeatureSet(features, torch.from_numpy(split.labels_of(np.arange(split.num_samples))))
    return replace(context, **sets)


def shifted(tmp_path: Path) -> dict[str, str]:
    """Sets whose images have the shades of their classes, but for one of each that has another's."""
    for name, words in (("a", WORDS[:3]), ("r", WORDS[2:5]), ("sketch", WORDS)):
        for word in words:
            save(tmp_path / name / word / "right.png", 22 + 40 * WORDS.index(word))
        save(tmp_path / name / words[0] / "wrong.png", 22 + 40 * 5)
    for label in range(6):
        save(tmp_path / "v2" / str(label) / "right.png", 22 + 40 * label)
    object_net(tmp_path / "objectnet")
    (tmp_path / "real.json").write_text(json.dumps([[0], [5], [1], [], *[[0, number // 2] for number in range(4, 12)]]))
    sets = {f"imagenet_{name}": str(tmp_path / name) for name in ("a", "r", "sketch", "v2")}
    return sets | {"objectnet": str(tmp_path / "objectnet"), "imagenet_real": str(tmp_path / "real.json")}


def values(found: Findings) -> dict[str, float]:
    return {name: metric.value for name, metric in by_name(found.metrics).items()}


@pytest.mark.thorough
def test_every_set_is_measured_by_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(context: Context, name: str, images: ShiftedSet) -> Tensor:
        return embedded(images.images, context)

    monkeypatch.setattr(robustness, "features_of", here)
    context = context_with(tmp_path)
    config = Robustness.Config(**shifted(tmp_path), normalize="none", learning_rates=(0.5,))
    counts = np.full(6, 4)
    assert Robustness.fit_to(config, Labelled(24, 12, WORDS, counts)) == (config, [])
    found = Robustness(config).measure(context)
    got = values(found)
    assert list(got) == Robustness.metrics(config, 6)
    assert got["test_top1"] == 100
    assert got["imagenet_sketch_top1"] == pytest.approx(100 * 6 / 7)
    assert got["imagenet_v2_top1"] == 100
    # of the classes that A allows the one nearest to the last class is taken for it, and that is wrong
    assert got["imagenet_a_top1"] == pytest.approx(100 * 3 / 4)
    assert got["imagenet_a_top5"] == 100  # of three classes
    assert got["imagenet_r_top1"] == pytest.approx(100 * 3 / 4)
    # image 2 has another class there, image 4 none, and those from 5 on have two
    assert got["imagenet_real_top1"] == pytest.approx(100 * 10 / 11)
    metrics = by_name(found.metrics)
    assert not metrics["test_top1"].is_headline
    assert metrics["imagenet_a_top1"].is_headline
    assert found.scores is not None
    assert torch.equal(found.scores.argmax(dim=1), context.test.labels if context.test else None)


@pytest.mark.thorough
def test_objects_are_right_as_any_of_their_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "features_of", lambda context, name, images: embedded(images.images, context))
    context = context_with(tmp_path)
    folder = object_net(tmp_path / "objectnet")
    for number, shade in enumerate((22, 62)):  # classes 0 and 1, both of which an alarm clock is
        save(folder / "images" / "alarm_clock" / f"{number}.png", shade, border=2)
    for number, shade in enumerate((142, 182)):  # class 3, and class 4, which no object is
        save(folder / "images" / "chair" / f"{number}.png", shade, border=2)
    config = Robustness.Config(objectnet=str(folder), normalize="none", learning_rates=(0.5,))
    got = values(Robustness(config).measure(context))
    assert got["objectnet_top1"] == 100  # of 182 the nearest that may be predicted is class 3


def test_features_of_a_set_are_asked_for_by_network_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def sets(wanted: Wanted, split: Split, data: DataConfig, folder: Folder) -> dict[str, Any]:
        asked.append((dict(wanted.weights), wanted.stages, folder.uri))
        (network,) = wanted.networks.values()
        features = embedded(split, replace(context, network=network))
        rows = FeatureSet(features, torch.zeros(len(features)))
        stored: Any = type("Stored", (), {"load": lambda self, stages: rows})
        return {name: stored() for name in wanted.networks}

    monkeypatch.setattr("raysl.benchmarks.features.extraction.feature_sets", sets)
    context = context_with(tmp_path)
    images = robustness._read("imagenet_a", shifted(tmp_path)["imagenet_a"], WORDS)
    no_checkpoint: Any = type("Checkpoint", (), {"digest": "0123"})()
    for side, weights in (("untrained", "untrained 0123"), ("pixels", "pixels")):
        own = replace(context, side=side, checkpoint=no_checkpoint)  # type: ignore[arg-type]
        assert torch.equal(features_of(own, "imagenet_a", images), embedded(images.images, context))
        assert asked[-1] == ({side: weights}, ("",), str(tmp_path / "work" / "features" / "imagenet_a"))


@pytest.mark.slow
def test_features_of_a_set_are_made_on_the_cluster(tmp_path: Path, shared_ray: None) -> None:
    context = context_with(tmp_path)
    sets = shifted(tmp_path)
    images = robustness._read("imagenet_a", sets["imagenet_a"], WORDS)
    no_checkpoint: Any = type("Checkpoint", (), {"digest": "0123"})()
    found = features_of(replace(context, checkpoint=no_checkpoint), "imagenet_a", images)
    assert torch.allclose(found, embedded(images.images, context), atol=1e-6)


def test_without_a_set_or_with_one_that_does_not_fit_it_is_refused(tmp_path: Path) -> None:
    images = Labelled(24, 12, WORDS, np.full(6, 4))
    with pytest.raises(
        ConfigError, match="robustness has no set to be measured on; give one of imagenet_a, imagenet_r"
    ):
        Robustness.fit_to(Robustness.Config(), images)
    with pytest.raises(
        ConfigError, match=r"holdout=0.1 holds out none of the 24 training images of 6 classes; .* robustness.holdout"
    ):
        Robustness.fit_to(Robustness.Config(imagenet_a="/a"), images)
    save(tmp_path / "a" / "cat" / "a.png")
    with pytest.raises(ConfigError, match=r"1 of 1 folders below .* are not named as a class .*first 'cat'"):
        Robustness.fit_to(Robustness.Config(imagenet_a=str(tmp_path / "a"), holdout=0.5), images)
    with pytest.raises(ConfigError, match="none"):
        Robustness.fit_to(Robustness.Config(imagenet_real=str(tmp_path / "none"), holdout=0.5), images)


@pytest.mark.thorough
def test_rates_at_which_nothing_is_learned_are_told_by_its_own_settings(tmp_path: Path) -> None:
    context = context_with(tmp_path)
    assert context.train is not None
    huge = FeatureSet(context.train.features * 1e17, context.train.labels)
    config = Robustness.Config(imagenet_a="/a", normalize="none", learning_rates=(1e8, 1e9), holdout=0.5)
    told = r"robustness: .* is 1e\+08; set smaller robustness\.learning_rates, or robustness\.normalize=standardize"
    with pytest.raises(ConfigError, match=told):
        Robustness(config).measure(replace(context, train=huge))


def test_names_are_told_without_the_sets() -> None:
    config = Robustness.Config(imagenet_a="/a", objectnet="/o")
    assert Robustness.metrics(config, 4) == ["test_top1", "imagenet_a_top1", "objectnet_top1"]
    assert Robustness.metrics(config, 6)[-1] == "objectnet_top5"
