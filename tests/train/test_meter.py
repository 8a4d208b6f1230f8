"""Throughput and time left leave out the first steps of a start."""

import logging
import sys

import pytest
import torch

from raysl.train.meter import WARM_UP, Meter
from raysl.train.progress import ProgressView


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, in a list that a test adds to."""
    now = [100.0]
    monkeypatch.setattr("raysl.train.meter.time.perf_counter", lambda: now[0])
    return now


def test_the_first_steps_of_a_start_are_not_timed(clock: list[float]) -> None:
    meter = Meter(torch.device("cpu"))
    for seconds in (60.0, 9.0, 3.0)[:WARM_UP]:
        with meter.waiting():
            clock[0] += seconds
        meter.count(32)
        assert meter.read().keys() == {"memory_gb"}
    for _ in range(4):
        with meter.waiting():
            clock[0] += 0.1
        clock[0] += 0.4
        meter.count(32)
    numbers = meter.read()
    assert numbers["step_s"] == pytest.approx(0.5)
    assert numbers["images_per_s"] == pytest.approx(64.0)
    assert numbers["data_wait"] == pytest.approx(0.2)


def test_a_line_behind_the_warm_up_holds_only_what_came_after_it(clock: list[float]) -> None:
    meter = Meter(torch.device("cpu"), warm_up=2)
    for seconds in (60.0, 9.0, 1.0, 1.0):
        clock[0] += seconds
        meter.count(10)
    assert meter.read()["step_s"] == pytest.approx(1.0)


def test_time_left_is_told_once_it_can_be_and_is_the_mean_of_what_was_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    view = ProgressView(total=100, every_s=0.0)
    view.show(1, {"loss": 1.0})
    view.show(10, {"loss": 1.0, "step_s": 1.0})
    view.show(20, {"loss": 1.0, "step_s": 3.0})
    view.show(100, {"loss": 1.0, "step_s": 3.0})
    assert caplog.messages == [
        "step 1/100 loss 1.0000",
        "step 10/100 loss 1.0000 left 2 min",
        "step 20/100 loss 1.0000 left 3 min",
        "step 100/100 loss 1.0000",
    ]


def test_a_plain_line_comes_first_last_and_when_none_came_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    for every_s in (3600.0, 0.0):
        view = ProgressView(total=20, every_s=every_s)
        for step in (1, 2, 10, 20):
            view.show(step, {"loss": 1.0})
    steps = [message.split()[1] for message in caplog.messages]
    assert steps == ["1/20", "20/20", "1/20", "2/20", "10/20", "20/20"]


def test_in_a_notebook_each_epoch_has_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "raysl")
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    view = ProgressView(total=20)
    for step in range(1, 20):
        view.show(step, {"loss": 1.0, "epoch": step / 5})
    assert [message.split()[1] for message in caplog.messages] == ["1/20", "5/20", "10/20", "15/20"]
