"""Which failures a run goes on after: decisions in Ray Train's controller."""

from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from raysl.cluster.failures import Worker
from raysl.errors import CodeError, ConfigError, DamagedData, RunFailed, StorageError
from raysl.runs import watch as watches
from raysl.runs.failures import FailureNotes
from raysl.runs.watch import FailureWatch, saved_step
from tests.runs.boards import Notes


class Run:
    """A run whose last saved step is set by hand, and what watches it in the controller."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, step: int = 0) -> None:
        self.step = step
        monkeypatch.setattr(watches, "saved_step", lambda uri: self.step)
        monkeypatch.setattr(FailureWatch, "_count_restart", lambda self: None)
        self.notes = FailureNotes(Notes())
        self.watch = FailureWatch(self.notes, "runs/one", most, step, 60.0, {})

    def goes_on_after(self, *errors: Exception, has_notice: bool = False) -> bool:
        """Whether the run goes on after these errors of ranks 0, 1 and so on."""
        self.notes.begin_group()
        if has_notice:
            self.notes.note_notice()
        for rank in range(2):
            self.notes.note_worker(rank, Worker("10.0.0.1", 100 + rank))
        try:
            self.watch.after_exception(None, dict(enumerate(errors)))
        except RunFailed:
            return False
        return True

    @property
    def text(self) -> str:
        """What was told last."""
        return self.notes.all()[-1].text


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a run with a limit of failures."""
    return lambda most, step=0: Run(monkeypatch, most, step)


KILLED = RayActorError()


def test_failures_with_a_saved_step_between_them_never_end_a_run(run: Any) -> None:
    endless = run(most=2)
    for step in range(5, 105, 5):
        endless.step = step
        assert endless.goes_on_after(KILLED)
        assert endless.goes_on_after(KILLED)


def test_failures_without_progress_end_a_run_and_are_counted_in_words(run: Any) -> None:
    failing = run(most=3)
    failing.step = 5
    assert [failing.goes_on_after(KILLED) for _ in range(3)] == [True, True, True]
    assert failing.text.startswith("lost worker 0 on 10.0.0.1: it does not answer")
    assert failing.text.endswith("; retry 3 of 3")
    assert not failing.goes_on_after(KILLED)
    assert failing.text.endswith("; no retry is left, 4 failures without a saved step between them")
    assert failing.notes.group()[1] == "waiting"


def test_a_step_that_is_saved_again_after_a_fall_back_is_no_progress(run: Any) -> None:
    back = run(most=1, step=20)
    back.step = 15
    assert back.goes_on_after(KILLED)
    back.step = 20
    assert not back.goes_on_after(KILLED)


@pytest.mark.parametrize("error", [CodeError("mine.py, line 3"), ConfigError("optim.lr: 0"), DamagedData("a.parquet")])
def test_what_a_retry_would_meet_again_ends_a_run_at_once(error: Exception, run: Any) -> None:
    lost_too = RuntimeError("[gloo/transport/tcp] Connection closed by peer")
    for failure in (error, RayTaskError("data_task", "", error)):
        final = run(most=-1)
        assert not final.goes_on_after(failure, lost_too)
        assert final.notes.all()[-1].end == ("code" if isinstance(error, CodeError) else "input")
        assert "retry" not in final.text


@pytest.mark.parametrize(
    "error", [OSError("no route to host"), StorageError("503"), RuntimeError("CUDA error: unspecified launch failure")]
)
def test_what_may_pass_is_tried_again(error: Exception, run: Any) -> None:
    passing = run(most=1)
    assert [passing.goes_on_after(error), passing.goes_on_after(error)] == [True, False]


def test_a_damaged_file_of_images_ends_a_run_at_once_and_a_storage_that_does_not_answer_is_tried_again(
    run: Any,
) -> None:
    damaged, silent = (RayTaskError("read", "", error) for error in (DamagedData("a.parquet"), RunFailed("timeout")))
    assert run(most=1).goes_on_after(silent)
    assert not run(most=-1).goes_on_after(damaged)


def test_a_limit_of_minus_one_has_no_end_and_zero_ends_at_once(run: Any) -> None:
    endless = run(most=-1)
    assert all(endless.goes_on_after(KILLED) for _ in range(50))
    assert endless.text.endswith("; retry 50")
    assert not run(most=0).goes_on_after(KILLED)


def test_nodes_that_are_taken_away_do_not_count_at_or_before_the_announced_time(run: Any) -> None:
    spot = run(most=1)
    assert all(spot.goes_on_after(RayActorError(preempted=True)) for _ in range(20))
    assert all(spot.goes_on_after(KILLED, has_notice=True) for _ in range(20))
    assert spot.text.endswith("; this does not count as a failure")
    assert [spot.goes_on_after(KILLED), spot.goes_on_after(KILLED)] == [True, False]


def test_a_group_that_ends_after_a_notice_without_an_error_is_told_by_the_next_one(run: Any) -> None:
    spot = run(most=1)
    spot.notes.begin_group()
    spot.notes.note_notice()
    spot.notes.begin_group()
    (failure,) = spot.notes.all()
    assert "taken back by the cloud" in failure.text
    assert failure.group == 1


def test_a_group_is_told_once_however_often_its_errors_are_seen(run: Any) -> None:
    seen = run(most=1)
    assert seen.goes_on_after(KILLED)
    for _ in range(5):
        seen.watch.after_exception(None, {0: KILLED, 1: KILLED})
    assert len(seen.notes.all()) == 1


def test_a_new_controller_goes_on_with_the_count_of_the_one_before(run: Any) -> None:
    before = run(most=1)
    assert before.goes_on_after(KILLED)
    before.watch = FailureWatch(before.notes, "runs/one", 1, 0, 60.0, {})
    assert not before.goes_on_after(KILLED)


def test_a_folder_without_a_checkpoint_or_that_cannot_be_read_shows_no_progress(tmp_path: Path) -> None:
    assert saved_step(str(tmp_path)) == 0
    (tmp_path / "file").write_text("")
    assert saved_step(str(tmp_path / "file")) == 0
