"""Trainings of benchmarks on several ranks, and on Ray."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysl.benchmarks import detection, segmentation
from raysl.benchmarks.benchmark import Benchmark, Context, Findings
from raysl.benchmarks.dense import detector as dense_detector
from raysl.benchmarks.dense import pyramid as dense_pyramid
from raysl.benchmarks.dense import workers
from raysl.benchmarks.detection import Detection
from raysl.benchmarks.segmentation import Segmentation
from raysl.cluster.resources import Resources
from raysl.errors import ConfigError
from raysl.train.late import NonFiniteLoss
from tests.benchmarks.dense import test_boxes, test_detection, test_segmentation
from tests.benchmarks.dense import test_masks as masks
from tests.benchmarks.dense.scenes import context, palette_png, put
from tests.rank_processes import RunRanks

CPU = torch.device("cpu")


def settings_of(name: str, data: Path, **fields: Any) -> Benchmark:
    """A small one of either kind on generated images."""
    if name == "segmentation":
        return Segmentation(test_segmentation.config(data, iterations=4, **fields))
    return Detection(test_detection.config(data, iterations=2, batch_size=4, lr=0.01, norm="frozen", **fields))


def measured(name: str, data: Path, run: Path) -> tuple[Findings, dict[str, torch.Tensor]]:
    """What a benchmark finds as one of the ranks that are there, and the weights that it ends with."""
    torch.set_num_threads(1)
    if name == "detection":
        dense_detector.WIDTH = dense_pyramid.WIDTH = 16
    {"segmentation": segmentation, "detection": detection}[name].forget = lambda *_: None  # type: ignore[attr-defined]
    given = context(run)
    found = settings_of(name, data).measure_on(given, CPU)  # type: ignore[attr-defined]
    (training,) = given.folder.names()
    (checkpoint,) = (run / training).iterdir()
    return found, torch.load(checkpoint / "train_state.pt", weights_only=True)["method"]


def both(folder: Path, run: str) -> tuple[Any, Any]:
    """What both find."""
    return tuple(measured(name, folder / name, folder / run / name) for name in ("segmentation", "detection"))  # type: ignore[return-value]


def test_two_ranks_come_to_what_one_does_and_measure_each_image_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_ranks: RunRanks
) -> None:
    masks.voc(tmp_path / "segmentation", num=5)
    test_boxes.voc(tmp_path / "detection", num=5)
    first, second = run_ranks(2, both, tmp_path, "two")
    for one, other in zip(first, second, strict=True):
        assert [metric.value for metric in one[0].metrics] == [metric.value for metric in other[0].metrics]
        assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
    monkeypatch.setattr(segmentation, "forget", None)  # which `measured` changes
    found, weights = measured("segmentation", tmp_path / "segmentation", tmp_path / "one")
    assert all(torch.allclose(weights[name], first[0][1][name], atol=1e-5) for name in weights)
    for metric, ours in zip(found.metrics, first[0][0].metrics, strict=True):
        assert metric.value == pytest.approx(ours.value, abs=0.5)


class Here:
    """Ray Train's trainer, in this process."""

    def __init__(self, work: Any, *, train_loop_config: Any, scaling_config: Any, **_: Any) -> None:
        self.work, self.config, self.scaling = work, train_loop_config, scaling_config

    def fit(self) -> Any:
        """What rank 0 returns."""
        assert (self.scaling.num_workers, self.scaling.use_gpu) == (2, False)
        return SimpleNamespace(return_value=self.work(self.config))


def test_what_would_fail_again_is_told_as_it_is_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "Trainer", Here)
    monkeypatch.setattr(workers, "connect", lambda: None)
    monkeypatch.setattr(workers, "cluster_resources", lambda: Resources(8, 0))
    monkeypatch.setattr(workers.ray, "put", lambda value: value)
    monkeypatch.setattr(workers.ray, "get", lambda value: value)
    monkeypatch.setattr(workers.ray.train.torch, "get_device", lambda: CPU)
    monkeypatch.setattr(workers.ray.train, "get_context", lambda: SimpleNamespace(get_local_world_size=lambda: 2))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    given, outcomes = context(tmp_path), [Findings([]), ConfigError("wrong"), NonFiniteLoss("not finite")]

    def measure_on(own: Context, device: torch.device) -> Findings:
        assert own.folder == given.folder
        assert device == CPU
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert workers.on_workers(measure_on, given, 2) == Findings([])
    with pytest.raises(ConfigError, match="wrong"):
        workers.on_workers(measure_on, given, 2)
    with pytest.raises(NonFiniteLoss, match="not finite"):
        workers.on_workers(measure_on, given, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_it_runs_on_ray_and_tells_of_a_broken_file(tmp_path: Path) -> None:
    masks.voc(tmp_path / "data")
    here = settings_of("segmentation", tmp_path / "data").measure_on(context(tmp_path / "here"), CPU)  # type: ignore[attr-defined]
    given = context(tmp_path / "there")
    found = settings_of("segmentation", tmp_path / "data").measure(given)
    assert isinstance(found, Findings)
    assert [metric.name for metric in found.metrics] == [metric.name for metric in here.metrics]
    assert found.metrics[0].value == pytest.approx(here.metrics[0].value, abs=0.5)
    assert given.folder.names() == []
    put(tmp_path / "data/SegmentationClass/2007_000101.png", palette_png(masks.scene(101)[1] + 30))
    with pytest.raises(ConfigError, match=r"2007_000101.png has a pixel of the number"):
        settings_of("segmentation", tmp_path / "data").measure(context(tmp_path / "again"))
