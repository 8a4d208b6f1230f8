"""What a start is refused for is told at once where it is known."""

from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.runs.run import train
from tests.runs.runs import SMALL


def refusal(storage: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        train(load_config("quickstart", [*SMALL, f"storage={storage}", "name=one", *words]))
    return str(refused.value)


@pytest.mark.thorough
def test_a_start_that_is_refused_leaves_no_folder_and_keeps_one_that_was_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, "method.weights=/gone").startswith("method.weights: no checkpoint at '/gone'")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "one").mkdir()
    refusal(tmp_path, "method.weights=/gone")
    assert (tmp_path / "one").is_dir()


def test_workers_that_do_not_divide_the_batch_are_refused_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    message = refusal(tmp_path, "train.batch_size=64", "train.workers=50")
    assert message.startswith("batch 64 is not divisible by 50 workers; try train.batch_size=50 or 100, or ")
    assert list(tmp_path.iterdir()) == []
