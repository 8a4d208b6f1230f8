"""What the ledger of a sweep is told by Ray Tune."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysl.config.load import load_config
from raysl.sweeps.load import from_tree
from raysl.sweeps.run import SweepRun
from raysl.sweeps.tuning import Ending, _ChoicesFile, _LedgerCallback


@pytest.fixture
def callback(tmp_path: Path) -> _LedgerCallback:
    base = load_config("quickstart", [f"storage={tmp_path}", "name=s"])
    tree = {"space": {"optim.lr": {"uniform": [0.1, 0.9]}}, "metric": "loss", "mode": "min", "scheduler": "pbt"}
    run = SweepRun.of(base, from_tree(tree, ""))
    return _LedgerCallback(run, Ending(), _ChoicesFile(run.folder, is_kept=False))


def _tunes(lr: float, last: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(trial_id="t1", config={"optim.lr": lr}, last_result=last or {})


def _handled(callback: _LedgerCallback) -> dict[str, str]:
    """Return the learning rates and statuses of the runs that the ledger knows."""
    with callback.ledger.following():
        pass
    return {f"{own.trial.settings['optim.lr']:g}": own.status for own in callback.ledger.records.values()}


@pytest.mark.thorough
def test_a_member_that_goes_on_from_another_is_one_new_run(callback: _LedgerCallback) -> None:
    callback.on_trial_start(0, [], _tunes(0.2))
    # the scheduler changes the settings of a member before the callback sees the last report of its run
    callback.on_trial_result(1, [], _tunes(0.5), {"epoch": 2.0, "config": {"optim.lr": 0.2}})
    callback.on_trial_start(2, [], _tunes(0.5, {"epoch": 2.0, "config": {"optim.lr": 0.2}}))
    assert _handled(callback) == {"0.2": "running"}
    heir = {"epoch": 3.0, "config": {"optim.lr": 0.5}, "parent": ["trial_00000000", 16]}
    callback.on_trial_result(3, [], _tunes(0.5), heir)
    assert _handled(callback) == {"0.2": "stopped", "0.5": "running"}
    assert callback.trials["t1"].parent == ("trial_00000000", 16)


@pytest.mark.thorough
def test_a_member_of_a_restored_population_is_the_run_that_it_was(callback: _LedgerCallback) -> None:
    heir = {"epoch": 3.0, "config": {"optim.lr": 0.5}, "parent": ["trial_00000000", 16]}
    callback.on_trial_start(0, [], _tunes(0.5, heir))
    assert _handled(callback) == {"0.5": "running"}
    assert callback.trials["t1"].parent == ("trial_00000000", 16)


@pytest.mark.thorough
def test_a_trial_that_fails_before_it_starts_is_logged(
    callback: _LedgerCallback, caplog: pytest.LogCaptureFixture
) -> None:
    trial = SimpleNamespace(**vars(_tunes(0.2)), error_file=None, pickled_error_file=None, num_failures=1)
    callback.on_trial_recover(0, [], trial)
    callback.on_trial_error(1, [], trial)
    assert _handled(callback) == {"0.2": "failed"}
    assert "its process was lost" in caplog.text
