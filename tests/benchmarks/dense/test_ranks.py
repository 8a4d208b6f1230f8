"""Trainings of benchmarks on several ranks, and on Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import raysl.runs.run
from raysl.benchmarks.benchmark import Benchmark, Findings
from raysl.benchmarks.dense import detector as dense_detector
from raysl.benchmarks.dense import maps as dense_maps
from raysl.benchmarks.depth import Depth
from raysl.benchmarks.detection import Detection
from raysl.benchmarks.segmentation import Segmentation
from raysl.benchmarks.training_runs import trained
from raysl.errors import ConfigError
from raysl.runs.run import train
from tests.benchmarks.dense import test_boxes, test_depth, test_depths, test_detection, test_segmentation
from tests.benchmarks.dense import test_masks as masks
from tests.benchmarks.dense.scenes import context, palette_png, put
from tests.benchmarks.trainings import train_here
from tests.rank_processes import RunRanks


def settings_of(name: str, data: Path, **fields: Any) -> Benchmark:
    """A small one of each kind on generated images."""
    if name == "segmentation":
        return Segmentation(test_segmentation.config(data, iterations=4, **fields))
    if name == "depth":
        return Depth(test_depth.config(data, iterations=8, **fields))
    return Detection(test_detection.config(data, iterations=2, batch_size=4, lr=0.01, norm="frozen", **fields))


@contextmanager
def kept_checkpoints() -> Iterator[None]:
    """Trainings in this process whose checkpoints stay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raysl.runs.run, "train", train_here([]))
        patch.setattr(trained, "remove", lambda *_: None)
        patch.setattr(dense_detector, "WIDTH", 16)
        patch.setattr(dense_maps, "WIDTH", 16)
        yield


def measured(name: str, data: Path, run: Path) -> tuple[Findings, dict[str, torch.Tensor]]:
    """What a benchmark finds as one of the ranks that are there, and the weights that it ends with."""
    torch.set_num_threads(1)
    given = context(run)
    with kept_checkpoints():
        found = settings_of(name, data).measure(given)
    assert isinstance(found, Findings)
    newest = sorted(Path(given.folder.path).glob("*/checkpoint_*/train_state.pt"))[-1]
    return found, torch.load(newest, weights_only=True)["method"]


def every(folder: Path, run: str) -> tuple[Any, ...]:
    """What each finds."""
    return tuple(measured(name, folder / name, folder / run / name) for name in ("segmentation", "depth", "detection"))


def test_two_ranks_come_to_what_one_does_and_measure_each_image_once(tmp_path: Path, run_ranks: RunRanks) -> None:
    masks.voc(tmp_path / "segmentation", num=5)
    test_boxes.voc(tmp_path / "detection", num=5)
    test_depths.bts(tmp_path / "depth", num=5)
    first, second = run_ranks(2, every, tmp_path, "two")
    for one, other in zip(first, second, strict=True):
        assert [metric.value for metric in one[0].metrics] == [metric.value for metric in other[0].metrics]
        assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
    for place, (name, within) in enumerate((("segmentation", 0.5), ("depth", 1e-3))):
        found, weights = measured(name, tmp_path / name, tmp_path / "one" / name)
        assert all(torch.allclose(weights[key], first[place][1][key], atol=1e-5) for key in weights)
        for metric, ours in zip(found.metrics, first[place][0].metrics, strict=True):
            assert metric.value == pytest.approx(ours.value, abs=within)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_it_runs_on_ray_and_tells_of_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks.voc(tmp_path / "data")
    here, _ = measured("segmentation", tmp_path / "data", tmp_path / "here")
    monkeypatch.setattr(raysl.runs.run, "train", train)
    given = context(tmp_path / "there")
    found = settings_of("segmentation", tmp_path / "data").measure(given)
    assert isinstance(found, Findings)
    assert [metric.value for metric in found.metrics] == [metric.value for metric in here.metrics]
    (run,) = given.folder.names()
    assert not [name for name in given.folder.child(run).names() if name.startswith("checkpoint")]
    put(tmp_path / "data/SegmentationClass/2007_000001.png", palette_png(masks.scene(1)[1] + 30))
    with pytest.raises(ConfigError, match=r"2007_000001.png has a pixel of number"):
        settings_of("segmentation", tmp_path / "data").measure(context(tmp_path / "again"))
