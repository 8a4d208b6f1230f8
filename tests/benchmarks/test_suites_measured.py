"""A suite on files in the layouts of its datasets: measured once, averaged, and what is missing is named."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysl.benchmarks.suite.evaluate import benchmark
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.leaderboard.of_runs import RunsPage
from tests.benchmarks.test_evaluate import SMALL, save, stamps
from tests.data.sources.test_torchvision_dataset import put

pytestmark = pytest.mark.usefixtures("shared_ray")

RNG = np.random.default_rng(0)
SUITE = """
title: Mine
settings: {name: logistic, costs: [0.1, 10.0], rivals: []}
parts:
  dtd: {metric: top1, data: {name: torchvision, dataset: DTD, validation_split: val, root: "{root}"}, files: dtd/}
  voc: {metric: map, loss: sigmoid, ap: 11point, data: {name: voc, path: "{root}/VOC2007", train_set: train,
    validation_set: val, test_set: test}}
  caltech:
    title: Caltech
    metric: mean_per_class
    data: {name: drawn, per_class: 30, sources: {all: {name: torchvision, dataset: Caltech101, root: "{root}"}}}
    files: "caltech101/ in {root}"
left_out: {dmlab: no loader has it}
"""


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.clip(RNG.normal(shade, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, "PNG")


def datasets(root: Path) -> None:
    """DTD and VOC2007, of two classes that differ in their grey."""
    for part in ("train", "val", "test"):
        names = [f"{kind}/{part}_{number}.jpg" for number in range(6) for kind in ("banded", "dotted")]
        put(root / f"dtd/dtd/labels/{part}1.txt", "\n".join(names))
        for name in names:
            picture(root / "dtd/dtd/images" / name, 60 if name.startswith("banded") else 180)
        for label, marks in (("cat", ("1", "-1")), ("dog", ("-1", "1"))):
            lines = [f"{part}_{number} {marks[number % 2]}" for number in range(8)]
            put(root / f"VOC2007/ImageSets/Main/{label}_{part}.txt", "\n".join(lines))
        for number in range(8):
            picture(root / f"VOC2007/JPEGImages/{part}_{number}.jpg", 60 + 120 * (number % 2))


def test_a_suite_is_measured_once_and_averaged_and_what_is_missing_is_named(tmp_path: Path) -> None:
    config = load_config(
        "quickstart", [*SMALL, "data.limit=60", "train.batch_size=16", f"storage={tmp_path}", "name=run"]
    )
    checkpoint = save(config, 2)
    datasets(tmp_path / "data")
    (tmp_path / "mine.yaml").write_text(SUITE)
    words = {"suite": str(tmp_path / "mine.yaml"), "root": str(tmp_path / "data")}
    report = benchmark(str(checkpoint), **words)  # type: ignore[arg-type]
    numbers = {name: value for name, value in report.metrics.items() if "/" in name}
    assert set(numbers) == {"mine/mean", "mine_dtd/top1", "mine_voc/map"}
    assert numbers["mine/mean"] == pytest.approx((numbers["mine_dtd/top1"] + numbers["mine_voc/map"]) / 2)
    assert report.scores[0].title == "Mine: mean of 2 of 4"
    stored = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [score["benchmark"] for score in stored["scores"]] == ["mine", "mine_dtd", "mine_voc"]
    notes = "\n".join(stored["notes"])
    assert f"it needs caltech101/ in {tmp_path}/data" in notes
    assert "mine_dmlab is left out: no loader has it" in notes
    assert "Mine: mean of 2 of 4" in (tmp_path / "run" / "report.html").read_text()
    assert "mine/mean" in RunsPage(str(tmp_path)).board().entries[0].metrics

    before = stamps(tmp_path / "run")
    assert benchmark(str(checkpoint), **words).metrics == report.metrics  # type: ignore[arg-type]
    assert stamps(tmp_path / "run") == before, "all parts were measured before"

    later = benchmark(str(checkpoint), ["knn"])
    assert later.metrics["mine/mean"] == numbers["mine/mean"], "a suite stays beside what is measured later"
    special = benchmark(str(checkpoint), None, ["mine.max_iter=50"], **words)  # type: ignore[arg-type]
    assert "with settings of one's own on 2 of them" in special.scores[0].note


def test_a_suite_without_any_of_its_datasets_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    config = load_config(
        "quickstart", [*SMALL, "data.limit=60", "train.batch_size=16", f"storage={tmp_path}", "name=run"]
    )
    checkpoint = save(config, 2)
    with pytest.raises(ConfigError) as caught:
        benchmark(str(checkpoint), suite="transfer", root=str(tmp_path))
    assert "nothing can be measured" in str(caught.value)
    assert f"it needs dtd/dtd/ with images/ and labels/ in {tmp_path}, or --download" in str(caught.value)
