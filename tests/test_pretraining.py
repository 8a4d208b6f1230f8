"""Names of the benchmarks that are measured after training."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysl import pretraining
from raysl.benchmarks.suite import evaluate
from raysl.benchmarks.suite.evaluate import Measurement
from raysl.cluster import connection
from raysl.config.load import load_config
from raysl.plan.setup import Setup
from raysl.process.waiting import waiting
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState
from tests.data.samples import png

SMALL = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


def test_what_the_images_do_not_allow_is_not_said_to_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(4):
        (tmp_path / f"flat/{number}.png").write_bytes(png(number))
    words = ["data=image_folder", f"data.path={tmp_path}/flat", "data.image_size=8", "train.batch_size=4"]
    usual = ["benchmarks.knn.required=false", "benchmarks.low_shot.required=false"]
    config = load_config("quickstart", [*SMALL, *words, *usual, f"storage={tmp_path}", "name=one"])
    assert set(config.benchmarks) == {"knn", "low_shot"}
    folder = RunFolder.of(config)
    TrainState.create(Setup.of(config, 4, 0)).save(Path(folder.uri) / "checkpoint_000000000", {})
    run = SimpleNamespace(config=config, folder=folder, metrics={}, checkpoint="", history=None, best=None)
    run.is_done = True

    @contextmanager
    def trained(*_: Any, **__: Any) -> Iterator[Any]:
        yield run

    monkeypatch.setattr(pretraining, "training", trained)
    monkeypatch.setattr(pretraining, "_facts", lambda run: {})
    monkeypatch.setattr(pretraining, "_print", lambda result: None)
    monkeypatch.setattr(Measurement, "run", lambda *_: SimpleNamespace(metrics={}, check=lambda: None))
    caplog.set_level(logging.INFO, "raysl")
    pretraining.pretrain(config)
    assert "training is done; nothing is left to measure" in caplog.messages
    assert not any("measuring" in message for message in caplog.messages)


def test_what_takes_long_is_named_without_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = SimpleNamespace(trains=False)
    tasks: list[Any] = [SimpleNamespace(kind=kind, key=key) for key in ("knn", "knn", "svm")]
    monkeypatch.setattr(connection, "connect", lambda: None)
    monkeypatch.setattr(connection, "cluster_resources", lambda: SimpleNamespace(cpus=1))
    monkeypatch.setattr(evaluate, "outlooks", lambda *_: [])
    monkeypatch.setattr(evaluate, "measure_all", lambda tasks: ((task, ValueError()) for task in tasks))
    with waiting() as waits:
        named = [waits._what for _ in Measurement._outcomes(None, tasks)]  # type: ignore[arg-type]
    assert named == ["measuring knn, svm", "measuring svm", "measuring svm"]
