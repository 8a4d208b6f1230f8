import math
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from raysl.config.build import from_dict
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.config.schema import OptimConfig, Phase
from raysl.errors import ConfigError
from raysl.optim.adam import AdamW
from raysl.optim.course import check_phases, lr_at, weight_decay_at
from raysl.optim.larc import LARC
from raysl.optim.sgd import SGD
from raysl.schedule import Duration, Step
from raysl.train import TrainPlan
from tests.config.unbounded import lacks_range

NONE = Duration.parse("0ep")


def half_cosine(progress: float, start: float, end: float) -> float:
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * progress))


def rates(optim: OptimConfig, batch_size: int, total: int, epoch_len: int, at: list[int]) -> list[float]:
    return [lr_at(optim, Step(index, total, epoch_len), batch_size) for index in at]


def test_stretched_courses_end_on_the_way() -> None:
    """MSN: 15 epochs from 2e-4 to 1e-3, then a cosine to 1e-6 that would last 1.25 times as long as the run."""
    msn = AdamW.Config(
        lr=1e-3, lr_scaling="none", warmup=Duration.parse("15ep"), warmup_start=0.2, final_lr=1e-3, stretch=1.25,
        weight_decay=0.04, weight_decay_end=0.4,
    )  # fmt: skip
    at = [0, 75, 150, 4000, 7999]
    last = [half_cosine((index - 150) / (10_000 - 150), 1e-3, 1e-6) for index in at[2:]]
    assert rates(msn, 1024, 8000, 10, at) == pytest.approx([2e-4, 6e-4, *last])
    decays = [weight_decay_at(msn, Step(index, 8000, 10)) for index in at]
    assert decays == pytest.approx([half_cosine(index / 10_000, 0.04, 0.4) for index in at])


def test_a_stretch_of_what_has_points_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim.stretch: 1.25 does not apply to schedule=steps"):
        load_config("quickstart", ["optim.stretch=1.25", "optim.schedule=steps", "optim.num_decays=2"])


def test_a_cosine_that_begins_with_the_run_is_below_the_peak_when_the_warm_up_ends() -> None:
    """SwAV: .6 to 4.8 over 2.5 % of 400 epochs, then the rest of a cosine over all of them to .0048."""
    swav = LARC.Config(lr=0.3, warmup=Duration.parse("2.5%"), warmup_start=0.125, final_lr=0.001, cosine_from="start")
    course = rates(swav, 4096, 40_000, 100, [0, 500, 1000, 20_000, 40_000])
    assert course == pytest.approx([0.6, 2.7, half_cosine(0.025, 4.8, 0.0048), half_cosine(0.5, 4.8, 0.0048), 0.0048])
    assert course[2] / 4.8 == pytest.approx(0.9985, abs=5e-5)
    (simclr,) = rates(replace(swav, warmup=Duration.parse("10%"), final_lr=0.0), 4096, 10_000, 100, [1000])
    assert simclr / 4.8 == pytest.approx(0.9755, abs=5e-5)
    assert rates(replace(swav, cosine_from="warmup"), 4096, 40_000, 100, [1000]) == pytest.approx([4.8])


def test_steps_down_at_epochs_or_shares() -> None:
    """MoCo: .03, a tenth of it from epoch 120 on, a hundredth from 160 on."""
    points = (Duration.parse("120ep"), Duration.parse("80%"))
    moco = SGD.Config(lr=0.03, lr_scaling="none", schedule="steps", warmup=NONE, decay_at=points)
    course = rates(moco, 256, 2000, 10, [0, 1199, 1200, 1599, 1600, 1999])
    assert course == pytest.approx([0.03, 0.03, 0.003, 0.003, 0.0003, 0.0003])


def test_weight_decay_follows_a_cosine() -> None:
    """DINO: weight decay .04 to .4, learning rate 1e-5 to .002 over 10 of 300 epochs and back."""
    dino = AdamW.Config(
        lr=0.0005, warmup_start=0.005, warmup=Duration.parse("10ep"), final_lr=0.005,
        cosine_from="start", weight_decay=0.04, weight_decay_end=0.4,
    )  # fmt: skip
    decay = [weight_decay_at(dino, Step(index, 3000, 10)) for index in (0, 750, 1500, 3000)]
    assert decay == pytest.approx([0.04, half_cosine(0.25, 0.04, 0.4), 0.22, 0.4])
    course = rates(dino, 1024, 3000, 10, [0, 50, 100, 3000])
    assert course == pytest.approx([1e-5, 1.005e-3, half_cosine(1 / 30, 0.002, 1e-5), 1e-5])
    assert weight_decay_at(replace(dino, weight_decay_end=None), Step(1500, 3000, 10)) == 0.04


def test_a_straight_line_goes_from_the_peak_to_the_end() -> None:
    optim = SGD.Config(lr=2.0, lr_scaling="none", schedule="linear", warmup=Duration.parse("4st"), final_lr=0.5)
    assert rates(optim, 64, 12, 4, [3, 4, 8, 12]) == pytest.approx([2.0, 2.0, 1.5, 1.0])


def test_restarts_begin_at_the_peak_after_the_warm_up() -> None:
    optim = SGD.Config(
        lr=1.0, lr_scaling="none", schedule="restarts", warmup=Duration.parse("2st"), final_lr=0.1,
        restart_every=Duration.parse("1ep"), restart_growth=2,
    )  # fmt: skip
    course = rates(optim, 64, 30, 4, [1, 2, 4, 6, 10, 13, 14, 22])
    last = half_cosine(7 / 8, 1.0, 0.1)
    assert course == pytest.approx([1.0, 1.0, 0.55, 1.0, 0.55, last, 1.0, 0.55])


def phase(shape: Any, length: str, start: float, end: float | None = None, over: Any = "phase") -> Phase:
    return Phase(shape=shape, length=Duration.parse(length), start=start, end=end, over=over)


def test_phases_follow_each_other() -> None:
    """SwAV with a second peak: linear, cosine, linear, cosine."""
    parts = (
        phase("linear", "10%", 0.125, 1.0),
        phase("cosine", "45%", 1.0, 0.001),
        phase("linear", "5ep", 0.001, 0.44),
        phase("constant", "25%", 0.44),
        phase("cosine", "150st", 0.44, 0.0),
    )
    optim = LARC.Config(lr=0.3, phases=parts)
    check_phases(optim, total=1000, epoch_len=10)
    course = rates(optim, 4096, 1000, 10, [0, 50, 99, 100, 325, 550, 575, 600, 849, 925, 1000])
    expected = [0.125, 0.5625, 0.99125, 1.0, 0.5005, 0.001, 0.2205, 0.44, 0.44, 0.22, 0.0]
    assert course == pytest.approx([4.8 * share for share in expected])


def test_a_phase_may_show_a_part_of_a_curve_over_the_run() -> None:
    parts = (phase("linear", "2.5%", 0.125, 1.0), phase("cosine", "97.5%", 1.0, 0.001, over="run"))
    in_parts = LARC.Config(lr=0.3, phases=parts)
    in_one = LARC.Config(lr=0.3, warmup=Duration.parse("2.5%"), warmup_start=0.125, final_lr=0.001, cosine_from="start")
    at = [0, 1, 24, 25, 26, 500, 999, 1000]
    assert rates(in_parts, 4096, 1000, 10, at) == pytest.approx(rates(in_one, 4096, 1000, 10, at))


def test_shares_that_fall_between_steps_fill_the_run() -> None:
    optim = SGD.Config(phases=tuple(phase("constant", f"{share}%", 1.0) for share in (33.4, 33.3, 33.3)))
    for total in range(1, 100):
        check_phases(optim, total, epoch_len=1)
        assert set(rates(optim, 256, total, 1, list(range(total)))) == {0.3}


def test_phases_that_do_not_fill_the_run_are_refused() -> None:
    config = load_config("quickstart", ["optim.warmup=10ep", "train.epochs=30", *PHASES])
    TrainPlan.from_config(config, 1442)
    longer = replace(config, train=replace(config.train, epochs=40))
    with pytest.raises(ConfigError, match=r"optim\.phases: 20ep \+ 10ep add up to 660 steps, and the run has 880"):
        TrainPlan.from_config(longer, 1442)


PHASES = ["optim.phases=[{shape: linear, length: 20ep, start: 0, end: 1}, {shape: constant, length: 10ep, start: 1}]"]


def test_phases_are_read_and_written() -> None:
    config = load_config("quickstart", ["optim.warmup=10ep", *PHASES])
    assert config.optim.phases == (phase("linear", "20ep", 0.0, 1.0), phase("constant", "10ep", 1.0))
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("optim.phases=[{shape: linear}]", r"optim.phases\[0\].length: missing"),
        ("optim.phases=[{shape: line, length: 1ep, start: 1}]", r"optim.phases\[0\].shape: 'line' is not one of its"),
        ("optim.phases=[{shape: linear, length: 1ep, start: 4.8}]", r"optim.phases\[0\].start: 4.8 is out of range"),
        ("optim.phases=[{shape: constant, length: 1ep, start: 1, end: 0}]", r"optim.phases\[0\]: a constant phase"),
        ("optim.phases=[{shape: linear, length: 0ep, start: 1}]", r"optim.phases\[0\].length: 0ep is out of range"),
        ("optim.phases=cosine", r"optim.phases\[0\]: 'cosine' is not a group of settings"),
        (PHASES[0], "^optim.phases: they replace optim.warmup=5ep; set optim.warmup=10ep, which"),
        ("optim.decay_at=60%", "optim.decay_at: schedule=cosine has no such points; set optim.schedule=steps"),
        ("optim.schedule=steps", r"optim.schedule: steps needs the points .* optim.decay_at=\[60%,80%\]"),
        ("optim.restart_every=1ep", "optim.restart_every: schedule=cosine has no restarts; set optim.schedule=rest"),
        ("optim.schedule=restarts", "optim.schedule: restarts needs .* set optim.restart_every=25%"),
        ("optim.schedule=linear optim.cosine_from=start", "optim.cosine_from: schedule=linear is not a cosine"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(words: str, told: str) -> None:
    overrides = [words] if "{" in words else words.split()
    with pytest.raises(ConfigError, match=told):
        load_config("quickstart", overrides)


def test_every_number_of_a_phase_has_a_range() -> None:
    assert not [name for name, hint in get_type_hints(Phase, include_extras=True).items() if lacks_range(hint)]
