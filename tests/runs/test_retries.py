"""Which failures a run goes on after: pure decisions, as Ray Train's controller asks for them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from raysl.errors import CodeError, ConfigError, DamagedData, RunFailed, StorageError
from raysl.runs.elastic import SaveOnNotice
from raysl.runs.retries import FailureCount, Retries, note_notice, saved_step


class Run:
    """A run whose last saved step is set by hand, and its policy."""

    def __init__(self, most: int, step: int = 0, num: int = 0) -> None:
        self.step = step
        self.policy = Retries(FailureCount(most, step, num), lambda: self.step)

    def goes_on_after(self, error: TrainingFailedError) -> bool:
        """Whether the run goes on."""
        return self.policy.make_decision(error) == FailureDecision.RETRY


def killed(preempted: bool = False) -> TrainingFailedError:
    death = RayActorError(preempted=preempted)
    return WorkerGroupError("rank 1 died", {1: WorkerHealthCheckFailedError("rank 1 died", death)})


def test_failures_with_a_saved_step_between_them_never_end_a_run() -> None:
    run = Run(most=2)
    for step in range(5, 105, 5):
        run.step = step
        assert run.goes_on_after(killed())
        assert run.goes_on_after(killed())


def test_failures_without_progress_end_a_run() -> None:
    run = Run(most=3)
    run.step = 5
    assert [run.goes_on_after(killed()) for _ in range(4)] == [True, True, True, False]


def test_a_step_that_is_saved_again_after_a_fall_back_is_no_progress() -> None:
    run = Run(most=1, step=20)
    run.step = 15
    assert run.goes_on_after(killed())
    run.step = 20
    assert not run.goes_on_after(killed())


@pytest.mark.parametrize("error", [CodeError("mine.py, line 3"), ConfigError("optim.lr: 0"), DamagedData("a.parquet")])
def test_what_a_retry_would_meet_again_ends_a_run_at_once(error: Exception) -> None:
    in_task = RayTaskError("data_task", "", error)
    for failure in (error, in_task):
        lost_too = RuntimeError("[gloo/transport/tcp] Connection closed by peer")
        assert not Run(most=-1).goes_on_after(WorkerGroupError("wrong", {0: failure, 1: lost_too}))


@pytest.mark.parametrize(
    "error", [OSError("no route to host"), StorageError("503"), RuntimeError("CUDA error: unspecified launch failure")]
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    run = Run(most=1)
    failure = WorkerGroupError("wrong", {0: error})
    assert [run.goes_on_after(failure), run.goes_on_after(failure)] == [True, False]


def test_a_damaged_file_of_images_ends_a_run_at_once_and_a_storage_that_does_not_answer_is_tried_again() -> None:
    run = Run(most=1)
    damaged, silent = (RayTaskError("read", "", error) for error in (DamagedData("a.parquet"), RunFailed("timeout")))
    assert run.goes_on_after(WorkerGroupError("wrong", {0: silent}))
    assert not Run(most=-1).goes_on_after(WorkerGroupError("wrong", {0: damaged}))


def test_a_limit_of_minus_one_has_no_end_and_zero_ends_at_once() -> None:
    endless, strict = Run(most=-1), Run(most=0)
    assert all(endless.goes_on_after(killed()) for _ in range(50))
    assert not strict.goes_on_after(killed())


def test_nodes_that_are_taken_away_after_a_notice_do_not_count() -> None:
    run = Run(most=1)
    assert all(run.goes_on_after(killed(preempted=True)) for _ in range(20))
    assert run.goes_on_after(killed())
    assert not run.goes_on_after(killed())


def test_a_node_that_goes_before_the_announced_time_does_not_count_either() -> None:
    run, watch = Run(most=0), SaveOnNotice()
    worker = SimpleNamespace(execute_async=lambda function: None)
    try:
        watch.before_init_train_context([worker])
        watch.after_worker_group_poll_status(SimpleNamespace(get_preemption_info=lambda: "node 1 goes"))
        assert run.goes_on_after(killed())
        watch.before_init_train_context([worker])
        assert not run.goes_on_after(killed())
    finally:
        note_notice(False)


def test_waiting_for_resources_does_not_count_and_workers_that_fail_to_start_do() -> None:
    run = Run(most=1)
    waiting = ControllerError(WorkerGroupStartupTimeoutError(2))
    failing = ControllerError(WorkerGroupStartupFailedError("a worker died while it started"))
    assert all(run.goes_on_after(waiting) for _ in range(20))
    assert [run.goes_on_after(failing), run.goes_on_after(failing)] == [True, False]


def test_a_loss_while_the_controller_starts_workers_is_tried_again() -> None:
    run = Run(most=1)
    lost = ControllerError(OutOfMemoryError("the node ran out of memory"))
    assert [run.goes_on_after(lost), run.goes_on_after(lost)] == [True, False]


def test_a_new_controller_goes_on_with_the_count_of_the_one_before() -> None:
    run = Run(most=2, step=10, num=1)
    assert run.goes_on_after(killed())
    assert not run.goes_on_after(killed())
    assert str(run.policy.failures) == "3 failures without a saved step between them"


def test_a_folder_without_a_checkpoint_or_that_cannot_be_read_shows_no_progress(tmp_path: Path) -> None:
    assert saved_step(str(tmp_path)) == 0
    (tmp_path / "file").write_text("")
    assert saved_step(str(tmp_path / "file")) == 0
