"""What a start is refused for is told at once where it is known."""

from pathlib import Path

import pytest

from raysl.cluster.resources import Resources
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.runs.run import train
from tests.runs.runs import SMALL


def refusal(storage: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        train(load_config("quickstart", [*SMALL, f"storage={storage}", "name=one", *words]))
    return str(refused.value)


def test_workers_that_divide_no_batch_and_fit_no_cluster_are_refused_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.runs.run.connect", lambda: None)
    monkeypatch.setattr("raysl.runs.run.cluster_resources", lambda: Resources(2, 0))
    uneven = "batch 64 is not divisible by 50 workers; try train.batch_size=50 or 100, or train.uneven=true "
    words = ("train.batch_size=64", "train.workers=50")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert refusal(tmp_path, *words).startswith(uneven), "no cluster is started for it"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    too_many = "50 workers are more than the 2 CPUs that this cluster can ever have; set train.workers=2 "
    message = refusal(tmp_path, *words)
    assert message.startswith(too_many)
    assert f"; besides, {uneven}" in message
    monkeypatch.setattr("raysl.runs.run.cluster_resources", lambda: Resources(64, 0))
    assert refusal(tmp_path, *words).startswith(uneven)
    assert not (tmp_path / "one").exists()


def test_a_start_that_is_refused_leaves_no_folder_and_keeps_one_that_was_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, "method.weights=/gone").startswith("method.weights: no checkpoint at '/gone'")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "one").mkdir()
    refusal(tmp_path, "method.weights=/gone")
    assert (tmp_path / "one").is_dir()
