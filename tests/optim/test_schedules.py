"""Schedules beside their formulas, worked out at single points."""

import math
from dataclasses import replace
from typing import Any

import pytest

from raysl.config.load import load_config
from raysl.config.schema import OptimConfig, Phase
from raysl.errors import ConfigError
from raysl.optim.adam import AdamW
from raysl.optim.course import check_phases, lr_at, weight_decay_at
from raysl.optim.sgd import SGD
from raysl.schedule import Duration, Step, even_part

NONE = Duration.parse("0ep")
BASE = SGD.Config(lr=2.0, lr_scaling="none", warmup=NONE)


def course(optim: OptimConfig, total: int, epoch_len: int, at: list[int]) -> list[float]:
    return [lr_at(optim, Step(index, total, epoch_len), 256) for index in at]


def durations(*texts: str) -> tuple[Duration, ...]:
    return tuple(Duration.parse(text) for text in texts)


def half(progress: float, start: float, end: float) -> float:
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * progress))


def test_a_polynomial_falls_with_the_power_of_what_is_left() -> None:
    optim = replace(BASE, schedule="polynomial", power=0.9)
    expected = [2.0, 2 * 0.75**0.9, 2 * 0.5**0.9, 2 * 0.1**0.9, 0.0]
    assert course(optim, 100, 10, [0, 25, 50, 90, 100]) == pytest.approx(expected)
    ending = replace(optim, power=3.0, final_lr=0.1, warmup=Duration.parse("20st"))
    assert course(ending, 100, 10, [9, 20, 60, 100]) == pytest.approx([1.0, 2.0, 0.2 + 1.8 / 8, 0.2])
    assert course(replace(optim, power=1.0), 7, 1, list(range(7))) == pytest.approx(
        course(replace(BASE, schedule="linear"), 7, 1, list(range(7)))
    )


def test_inverse_sqrt_goes_on_at_the_peak_when_the_warm_up_ends() -> None:
    """start * sqrt(warm-up) * w^-0.5, both as shares of the run."""
    optim = replace(BASE, schedule="inverse_sqrt", warmup=Duration.parse("5%"))
    at = [50, 51, 200, 450, 999]
    expected = [2 * math.sqrt(0.05) * (index / 1000) ** -0.5 for index in at]
    assert course(optim, 1000, 10, at) == pytest.approx(expected)
    assert expected[0] == pytest.approx(2.0)
    assert course(optim, 1000, 10, [24]) == pytest.approx([1.0])
    assert course(optim, 4, 4, [0, 1, 3]) == pytest.approx([2.0, 2.0, 2 / math.sqrt(3)])  # no step to warm up in


def test_even_steps_part_what_follows_the_warm_up() -> None:
    optim = replace(BASE, schedule="steps", num_decays=3, decay_factor=0.5)
    at = [0, 24, 25, 50, 75, 99]
    assert course(optim, 100, 10, at) == pytest.approx([2.0, 2.0, 1.0, 0.5, 0.25, 0.25])
    warm = replace(optim, warmup=Duration.parse("20st"))
    assert course(warm, 100, 10, [19, 39, 40, 60, 99]) == pytest.approx([2.0, 2.0, 1.0, 0.5, 0.25])


def test_parts_that_fall_between_steps_are_all_seen() -> None:
    parts = [even_part(Step(index, 10, 1), 0, 3) for index in range(10)]
    assert parts == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert even_part(Step(10, 10, 1), 0, 3) == 2


def test_values_stand_between_milestones_or_in_even_parts() -> None:
    """VISSL's multistep: values[number of milestones that the epoch has reached]; its step: equal splits."""
    multi = replace(BASE, schedule="steps", decay_at=durations("30ep", "60ep", "80ep"), values=(1.0, 0.1, 0.5, 0.001))
    at = [0, 299, 300, 599, 600, 799, 800, 999]
    expected = [2.0, 2.0, 0.2, 0.2, 1.0, 1.0, 0.002, 0.002]
    assert course(multi, 1000, 10, at) == pytest.approx(expected)
    even = replace(BASE, schedule="steps", values=(0.25, 1.0, 0.5))
    assert course(even, 9, 9, [0, 2, 3, 5, 6, 8]) == pytest.approx([0.5, 0.5, 2.0, 2.0, 1.0, 1.0])


def restarted(w: float, r: float, start: float, end: float, wave: str, factor: float | None) -> float:
    """VISSL's scheduler in its own terms; no factor: peaks of the cosine without restarts."""
    points, stride = [0.0], r if wave == "half" else 2 * r
    while (points[-1] or (0.0 if wave == "half" else r - stride)) + stride < 1 - 1e-9:
        points.append((points[-1] or (0.0 if wave == "half" else r - stride)) + stride)
    number = sum(point <= w + 1e-12 for point in points) - 1
    ahead = 0.0 if wave == "half" else r
    top = half(points[number] + ahead, start, end) if factor is None else start * factor**number
    x = (w / r) % 1 if wave == "half" else w / r
    return end + 0.5 * (top - end) * (1 + math.cos(math.pi * x))


@pytest.mark.parametrize("wave", ["half", "full"])
@pytest.mark.parametrize("factor", [1.0, 0.5, None])
def test_restarts_are_those_of_vissl(wave: Any, factor: float | None) -> None:
    peak: dict[str, Any] = {"restart_peak": "cosine"} if factor is None else {"restart_factor": factor}
    optim = replace(
        BASE, schedule="restarts", restart_every=Duration.parse("25%"), restart_wave=wave, final_lr=0.05, **peak
    )
    at = list(range(0, 1000, 10))
    expected = [restarted(index / 1000, 0.25, 2.0, 0.1, wave, factor) for index in at]
    assert course(optim, 1000, 10, at) == pytest.approx(expected)


def test_peaks_of_restarts_at_single_points() -> None:
    quarter: dict[str, Any] = {"schedule": "restarts", "restart_every": Duration.parse("25%")}
    at = [0, 25, 50, 75]
    assert course(replace(BASE, **quarter, restart_factor=0.5), 100, 1, at) == pytest.approx([2.0, 1.0, 0.5, 0.25])
    followed = [half(index / 100, 2.0, 0.0) for index in at]
    assert course(replace(BASE, **quarter, restart_peak="cosine"), 100, 1, at) == pytest.approx(followed)
    there_and_back = replace(BASE, **quarter, restart_wave="full", restart_factor=0.5)
    assert course(there_and_back, 100, 1, [0, 25, 50, 75]) == pytest.approx([2.0, 0.0, 1.0, 0.0], abs=1e-12)


def test_by_the_epoch_a_value_changes_where_an_epoch_begins() -> None:
    decaying = AdamW.Config(
        lr=2.0, lr_scaling="none", warmup=NONE, update_every="epoch", weight_decay=0.1, weight_decay_end=0.5,
        weight_decay_schedule="linear",
    )  # fmt: skip
    each = course(decaying, 40, 10, list(range(40)))
    assert each == pytest.approx([half(epoch / 4, 2.0, 0.0) for epoch in range(4) for _ in range(10)])
    decays = [weight_decay_at(decaying, Step(index, 40, 10)) for index in (0, 9, 10, 39)]
    assert decays == pytest.approx([0.1, 0.1, 0.2, 0.4])
    by_step = replace(decaying, update_every="step")
    assert weight_decay_at(by_step, Step(39, 40, 10)) == pytest.approx(0.1 + 0.4 * 39 / 40)
    warm = replace(decaying, warmup=Duration.parse("2ep"))
    assert course(warm, 40, 10, [0, 9, 10, 19, 20]) == pytest.approx([0.1, 0.1, 1.1, 1.1, 2.0])


def phase(shape: Any, length: str, start: float, end: float | None = None, **more: Any) -> Phase:
    return Phase(shape=shape, length=Duration.parse(length), start=start, end=end, **more)


def test_phases_of_polynomials_and_roots() -> None:
    optim = replace(
        BASE,
        warmup=Duration.parse("10ep"),
        phases=(
            phase("linear", "10%", 0.0, 1.0),
            phase("inverse_sqrt", "30%", 1.0),
            phase("polynomial", "60%", 0.5, 0.1, power=2.0),
        ),
    )
    check_phases(optim, 100, 10)
    expected = [1.0, 2.0, 2 * math.sqrt(10 / 20), 2 * math.sqrt(10 / 39), 1.0, 2 * (0.1 + 0.4 / 4), 0.2]
    assert course(optim, 100, 10, [5, 10, 20, 39, 40, 70, 100]) == pytest.approx(expected)
    over_all = replace(optim, phases=(phase("polynomial", "100%", 1.0, 0.0, power=2.0, over="run"),))
    assert course(over_all, 100, 10, [50]) == pytest.approx([0.5])
    with pytest.raises(ConfigError, match=r"add up to 90 steps, and the run has 100"):
        check_phases(replace(optim, phases=optim.phases[1:] * 1), 100, 10)


STEPS = "optim.schedule=steps"
RESTARTS = "optim.schedule=restarts optim.restart_every=25%"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("optim.power=2", "optim.power: schedule=cosine is not a polynomial; set optim.schedule=polynomial"),
        ("optim.values=[1,2]", r"optim.values\[1\]: 2.0 is out of range"),
        ("optim.values=[1,0.5]", "optim.values: schedule=cosine has no steps; set optim.schedule=steps, or leave it"),
        ("optim.num_decays=2", "optim.num_decays: schedule=cosine has no steps; set optim.schedule=steps"),
        ("optim.restart_factor=0.5", "optim.restart_factor: schedule=cosine has no restarts; set optim.schedule=rest"),
        (
            f"{STEPS} optim.values=[1,0.5] optim.decay_at=[60%,80%]",
            "optim.values: 2 values, but 2 points .* make 3",
        ),
        (f"{STEPS} optim.num_decays=2 optim.decay_at=[60%]", "optim.num_decays: 2 even steps, but optim.decay_at def"),
        (f"{STEPS} optim.num_decays=2 optim.values=[1,0]", "optim.num_decays: 2 even steps, but optim.values def"),
        (f"{RESTARTS} optim.restart_wave=full optim.restart_growth=2", "optim.restart_growth: 2, but full waves have"),
        (f"{RESTARTS} optim.restart_peak=cosine optim.restart_factor=0.5", "optim.restart_factor: 0.5, but optim.res"),
        ("optim.schedule=inverse_sqrt optim.warmup=0ep", "optim.schedule: inverse_sqrt begins at the end of a warm"),
        ("optim.weight_decay_schedule=linear", "optim.weight_decay_schedule: linear leads to optim.weight_decay_end"),
        ("optim.update_every=2ep", "optim.update_every: '2ep' is not one of its"),
    ],
)
def test_settings_of_a_schedule_that_do_not_go_together_are_refused(words: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config("quickstart", words.split())


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        ("[{shape: inverse_sqrt, length: 100%, start: 1}]", r"optim.phases\[0\].shape: inverse_sqrt is infinite at"),
        ("[{shape: inverse_sqrt, length: 100%, start: 1, end: 0}]", r"optim.phases\[0\]: the curve of an inv"),
        ("[{shape: cosine, length: 100%, start: 1, power: 2}]", r"optim.phases\[0\]: power=2 is for a polynomial"),
    ],
)
def test_phases_that_cannot_be_are_refused(phases: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config("quickstart", ["optim.warmup=10ep", f"optim.phases={phases}"])
