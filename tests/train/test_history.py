"""What a run has logged, as a table."""

import math
from pathlib import Path

import pandas as pd
import pytest

import raysl
from raysl.errors import ConfigError, StorageError
from raysl.train.callbacks.logs import MetricsLog
from raysl.train.history import frame
from tests.faults import Faults
from tests.train.callbacks.own import Logs, train


@pytest.mark.thorough
def test_every_line_is_a_row_and_every_number_a_column(tmp_path: Path) -> None:
    _, _, lines = train(tmp_path / "run", Logs("rare", {3: 0.5, 8: 0.25}), MetricsLog(tmp_path / "run"))
    history = raysl.load_history(tmp_path / "run")
    assert isinstance(history, pd.DataFrame)
    assert history["step"].tolist() == list(range(1, 9))
    assert history["step"].dtype == "int64"
    assert history["loss"].tolist() == [lines[step]["loss"] for step in range(1, 9)]
    assert history[["step", "rare"]].dropna().to_numpy().tolist() == [[3, 0.5], [8, 0.25]]
    assert set(history.columns) == {"step", *(name for line in lines.values() for name in line)}
    assert all(kind == "float64" for name, kind in history.dtypes.items() if name != "step")


def test_a_line_that_is_being_written_is_left_out_and_no_number_stays_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "loss": NaN}\n{"step": 10, "loss": 2}\n{"step": 15, "lo')
    history = raysl.load_history(str(tmp_path))
    assert history["step"].tolist() == [5, 10]
    assert math.isnan(history["loss"][0])
    assert history["loss"][1] == 2.0


def test_a_folder_in_which_nothing_was_logged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing has been logged in .*none'; give the folder of a run"):
        raysl.load_history(tmp_path / "none")
    with pytest.raises(ConfigError, match="run: 3 is not a name, path or URI"):
        raysl.load_history(3)  # type: ignore[arg-type]
    assert frame([]).columns.tolist() == ["step"]


def test_a_storage_that_does_not_answer_is_an_error_at_once(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raysl.storage.folder.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("raysl.storage.folder.PATIENCE_S", 0.02)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 5, "loss": 2}\n')
    faults.add("*", "run", times=None)
    with pytest.raises(StorageError):
        raysl.load_history(f"faulty://{tmp_path}/run")
    assert "for up to" not in caplog.text, "nothing is waited for"
