"""A bucket that does not do what a bucket should."""

import time

import pytest

from tests.chaos.bucket import Bucket
from tests.chaos.conftest import Calm, Disturb, Record

pytestmark = pytest.mark.slow

PACED = "callbacks.gate.pace_s=1"
OUTAGE_S = 20


def test_training_goes_on_while_a_bucket_answers_503(
    bucket: Bucket, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(PACED, storage=bucket.storage, hold=0)
    run.start()
    run.last.until(lambda: len(run.steps()) >= 6)
    run.hit(lambda: setattr(bucket, "is_up", False))
    time.sleep(OUTAGE_S)  # the fault itself
    assert bucket.num_refused
    assert len(run.steps()) > 10, "it trains on meanwhile"
    bucket.is_up = True
    run.last.ended()
    record(run.row(f"S3 answers 503 for {OUTAGE_S} s", calm()))
    assert run.steps_again() == 0


def test_a_slow_bucket_slows_no_step(bucket: Bucket, disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(PACED, storage=bucket.storage, hold=0)
    run.start()
    run.last.until(lambda: len(run.steps()) >= 6)
    run.hit(lambda: setattr(bucket, "delay_s", 1.0))
    run.last.ended()
    record(run.row("S3 takes a second for each answer", calm()))
    assert run.steps_again() == 0


def test_a_lost_object_costs_the_steps_since_the_checkpoint_before(
    bucket: Bucket, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(storage=bucket.storage)
    run.start()
    run.until_held()
    run.last.kill()
    run.hit(lambda: run.run.remove("checkpoint_000000015/train_state.pt"))
    run.let_go()
    assert "resumed at step 10 of 40" in run.start().ended()
    record(run.row("S3 loses an object of the newest checkpoint, and the driver is killed", calm()))
    assert run.steps_again() == 7


def test_a_half_uploaded_checkpoint_is_not_taken_for_the_end(
    bucket: Bucket, disturb: Disturb, calm: Calm, record: Record
) -> None:
    bucket.held = r"(PUT|POST) .*/checkpoint_000000040/meta\.json"
    run = disturb(storage=bucket.storage, hold=0)
    run.start()
    run.last.until(lambda: bucket.num_held > 0)
    run.hit(run.last.kill)
    bucket.held = ""
    assert "resumed at step 35 of 40" in run.start().ended()
    record(run.row("SIGKILL of the driver while it uploads the last checkpoint to S3", calm()))
    assert run.steps_again() == 5


def test_a_killed_driver_on_a_bucket_is_replaced_at_once(
    bucket: Bucket, disturb: Disturb, calm: Calm, record: Record
) -> None:
    run = disturb(storage=bucket.storage)
    run.start()
    run.until_held()
    run.hit(run.last.kill)
    run.let_go()
    assert "resumed at step 15 of 40" in run.start().ended()
    record(run.row("SIGKILL of the driver of a run on S3", calm()))
    assert run.steps_again() == 2


def test_a_second_driver_on_a_bucket_is_refused(bucket: Bucket, disturb: Disturb, calm: Calm, record: Record) -> None:
    run = disturb(storage=bucket.storage)
    first = run.start()
    run.until_held()
    run.hit(run.start)
    run.last.ended(2)
    run.let_go()
    first.ended()
    record(run.row("a second driver of the same run on S3", calm()))
    assert run.steps_again() == 0
