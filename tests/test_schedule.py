import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysl.schedule import (
    Duration,
    Step,
    cosine,
    decays,
    linear,
    linear_over,
    progress_after,
    restart_period,
    warmup,
)

UNITS = st.sampled_from(["ep", "st", "%"])
TOTALS = st.integers(1, 10**6)


@st.composite
def durations(draw: st.DrawFn) -> Duration:
    unit = draw(UNITS)
    value = draw(st.integers(0, 10**12)) if unit == "st" else draw(st.floats(0, 1e9))
    return Duration(float(value), unit)


def test_a_step_knows_its_epoch_and_share() -> None:
    step = Step(25, 40, 10)
    assert (step.epoch, step.in_epoch, step.progress) == (2, 5, 0.625)
    assert step.next() == Step(26, 40, 10)
    assert Step(0, 40, 10).progress == 0.0
    assert Step(39, 40, 10).progress < 1.0


@pytest.mark.thorough
@given(index=TOTALS, epoch_len=TOTALS)
def test_epoch_and_place_in_it_make_up_the_index(index: int, epoch_len: int) -> None:
    step = Step(index, index + 1, epoch_len)
    assert step.epoch * epoch_len + step.in_epoch == index
    assert 0 <= step.in_epoch < epoch_len


@pytest.mark.parametrize(
    ("text", "steps"),
    [("10ep", 100), ("0.5ep", 5), ("500st", 500), ("5%", 10), ("0.5%", 1), ("100%", 200), ("0st", 0), (" 3 ep ", 30)],
)
def test_durations_are_read_in_epochs_steps_and_shares(text: str, steps: int) -> None:
    assert Duration.parse(text).steps(200, 10) == steps


@pytest.mark.parametrize(
    "text", ["", "10", "ep", "-1ep", "1.5st", "1e2st", "10 epochs", "5 %%", "1.ep", "nan%", "10EP"]
)
def test_what_is_no_duration_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(ValueError, match=r"10ep.*500st.*5%|write 2st"):
        Duration.parse(text)


@pytest.mark.thorough
@given(duration=durations())
def test_a_duration_is_read_back_from_its_text_exactly(duration: Duration) -> None:
    assert Duration.parse(str(duration)) == duration


@pytest.mark.parametrize("text", ["10ep", "0.5ep", "500st", "5%", "1234567st", "0.0000001%", "33.333333333%"])
def test_the_text_of_a_duration_is_the_one_it_came_from(text: str) -> None:
    assert str(Duration.parse(text)) == text


@pytest.mark.thorough
@given(duration=durations(), total=TOTALS, epoch_len=TOTALS)
def test_the_length_in_steps_is_a_whole_number_within_half_a_step(
    duration: Duration, total: int, epoch_len: int
) -> None:
    exact = duration.value * {"ep": epoch_len, "st": 1, "%": total / 100}[duration.unit]
    assert abs(duration.steps(total, epoch_len) - exact) <= 0.5 + 1e-9 * exact


def test_a_duration_is_due_at_its_multiples() -> None:
    def due(text: str) -> list[int]:
        return [i for i in range(1, 21) if Duration.parse(text).is_due(Step(i, 20, 5))]

    assert due("1ep") == [5, 10, 15, 20]
    assert due("25%") == [5, 10, 15, 20]
    assert due("8st") == [8, 16]
    assert due("0st") == list(range(1, 21))
    assert due("0.1%") == list(range(1, 21))


def test_cosine_has_the_values_of_half_a_period() -> None:
    expected = {0.0: 1.0, 0.25: (1 + math.sqrt(0.5)) / 2, 0.5: 0.5, 0.75: (1 - math.sqrt(0.5)) / 2, 1.0: 0.0, 1.5: 0.0}
    for progress, value in expected.items():
        assert cosine(progress, 1.0, 0.0) == pytest.approx(value, abs=1e-12)
    assert cosine(0.5, 0.996, 1.0) == pytest.approx(0.998)


@pytest.mark.thorough
@given(a=st.floats(0, 1), b=st.floats(0, 1), start=st.floats(-10, 10), end=st.floats(-10, 10))
def test_schedules_run_from_start_to_end_without_turning_back(a: float, b: float, start: float, end: float) -> None:
    for schedule in (linear, cosine):
        assert schedule(0.0, start, end) == pytest.approx(start, abs=1e-9)
        assert schedule(1.0, start, end) == pytest.approx(end, abs=1e-9)
        early, late = schedule(min(a, b), start, end), schedule(max(a, b), start, end)
        assert (late - early) * (end - start) >= -1e-9


def test_warm_up_rises_by_equal_parts_and_stays_at_one() -> None:
    assert [warmup(Step(i, 10, 5), 4) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup(Step(0, 10, 5), 0) == 1.0


def test_progress_after_the_warm_up_starts_at_zero() -> None:
    assert [progress_after(Step(i, 10, 5), 5) for i in (0, 4, 5, 6, 9)] == [0.0, 0.0, 0.0, 0.2, 0.8]
    assert progress_after(Step(3, 10, 5), 20) == 0.0
    assert progress_after(Step(3, 10, 5), 0) == 0.3


@pytest.mark.thorough
@given(total=TOTALS, num_warmup=st.integers(0, 10**6), data=st.data())
def test_progress_after_the_warm_up_stays_below_one(total: int, num_warmup: int, data: st.DataObject) -> None:
    step = Step(data.draw(st.integers(0, total - 1)), total, 1)
    assert 0.0 <= progress_after(step, num_warmup) < 1.0
    assert 0.0 < warmup(step, num_warmup) <= 1.0


def test_a_warm_up_from_a_start_value_has_it_at_the_first_step() -> None:
    factors = [warmup(Step(i, 10, 5), 4, start=0.2) for i in range(6)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_a_line_over_a_duration_stays_at_its_end() -> None:
    temperatures = [linear_over(Step(i, 40, 10), Duration.parse("2ep"), 0.04, 0.07) for i in (0, 10, 20, 39)]
    assert temperatures == pytest.approx([0.04, 0.055, 0.07, 0.07])
    assert linear_over(Step(0, 40, 10), Duration.parse("0ep"), 0.04, 0.07) == 0.07


def test_steps_down_come_at_their_points_in_any_unit() -> None:
    points = [Duration.parse(text) for text in ("2ep", "30st", "90%")]
    factors = [decays(Step(i, 40, 10), points, 0.1) for i in (0, 19, 20, 29, 30, 35, 36, 39)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(("period", "growth"), [(1, 1), (7, 1), (1, 2), (5, 3)])
def test_restarts_come_when_those_of_torch_do(period: int, growth: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=2.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, period, growth, eta_min=0.5)
    for num_done in range(60):
        _, begin, length = restart_period(num_done, period, growth)
        ours = cosine((num_done - begin) / length, 2.0, 0.5)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        theirs.step()
