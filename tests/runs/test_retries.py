"""Which failures a run goes on after: pure decisions, as Ray Train's controller asks for them."""

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from raysl.runs import retries
from raysl.runs.retries import Failures, Retries, SavedStep


@pytest.fixture(autouse=True)
def _new_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_saved_step", 0)


def save(step: int) -> None:
    SavedStep().after_report(None, [{"step": step}, {"step": step}])


def killed(preempted: bool = False) -> TrainingFailedError:
    death = RayActorError(preempted=preempted)
    return WorkerGroupError("rank 1 died", {1: WorkerHealthCheckFailedError("rank 1 died", death)})


def decide(policy: Retries, error: TrainingFailedError) -> bool:
    """Whether the run goes on."""
    return policy.make_decision(error) == FailureDecision.RETRY


def test_failures_with_a_saved_step_between_them_never_end_a_run() -> None:
    policy = Retries(Failures(most=2))
    for step in range(5, 105, 5):
        save(step)
        assert decide(policy, killed())
        assert decide(policy, killed())


def test_failures_without_progress_end_a_run() -> None:
    policy = Retries(Failures(most=3))
    save(5)
    assert [decide(policy, killed()) for _ in range(4)] == [True, True, True, False]


def test_a_step_that_is_saved_again_after_a_fall_back_is_no_progress() -> None:
    policy = Retries(Failures(most=1, step=20))
    save(15)
    assert decide(policy, killed())
    save(20)
    assert not decide(policy, killed())


def test_an_exception_of_a_worker_counts_like_a_loss() -> None:
    policy = Retries(Failures(most=1))
    error = WorkerGroupError("wrong", {0: ValueError("wrong")})
    assert [decide(policy, error), decide(policy, error)] == [True, False]


def test_a_limit_of_minus_one_has_no_end_and_zero_ends_at_once() -> None:
    endless, strict = Retries(Failures(most=-1)), Retries(Failures(most=0))
    assert all(decide(endless, killed()) for _ in range(50))
    assert not decide(strict, killed())


def test_nodes_that_are_taken_away_after_a_notice_do_not_count() -> None:
    policy = Retries(Failures(most=1))
    assert all(decide(policy, killed(preempted=True)) for _ in range(20))
    assert decide(policy, killed())
    assert not decide(policy, killed())


def test_waiting_for_resources_does_not_count_and_workers_that_fail_to_start_do() -> None:
    policy = Retries(Failures(most=1))
    waiting = ControllerError(WorkerGroupStartupTimeoutError(2))
    failing = ControllerError(WorkerGroupStartupFailedError("a worker died while it started"))
    assert all(decide(policy, waiting) for _ in range(20))
    assert [decide(policy, failing), decide(policy, failing)] == [True, False]


def test_a_loss_while_the_controller_starts_workers_is_tried_again() -> None:
    policy = Retries(Failures(most=1))
    lost = ControllerError(OutOfMemoryError("the node ran out of memory"))
    assert [decide(policy, lost), decide(policy, lost)] == [True, False]


def test_a_new_controller_goes_on_with_the_count_of_the_one_before() -> None:
    failures = Failures(most=2, step=10)
    assert failures.add(10)
    policy = Retries(failures)
    assert decide(policy, killed())
    assert not decide(policy, killed())
    assert str(failures) == "3 failures without a saved step between them"
