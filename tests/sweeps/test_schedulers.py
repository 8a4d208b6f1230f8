"""Ray Tune's schedulers and searchers by name and import path."""

from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from raysl.cluster.tasks import HEAD
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.sweeps.distributions import parse
from raysl.sweeps.load import from_tree
from raysl.sweeps.ray_tune import domain, scheduler_of, searcher_of
from raysl.sweeps.run import SweepRun
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.tuning import SweepTrial

SPACE = {"optim.lr": {"loguniform": [0.01, 1.0]}, "method.temperature": {"uniform": [0.1, 0.5]}}


def _sweep(**settings: Any) -> SweepConfig:
    return from_tree({"space": SPACE, "metric": "loss", "mode": "min", **settings}, "")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("none", FIFOScheduler),
        ("asha", AsyncHyperBandScheduler),
        ("hyperband", HyperBandScheduler),
        ("median", MedianStoppingRule),
        ("pbt", PopulationBasedTraining),
        ("ray.tune.schedulers.pb2.PB2", PB2),
    ],
)
def test_a_scheduler_is_tunes_and_counts_in_epochs(name: str, kind: type) -> None:
    made = scheduler_of(_sweep(scheduler=name), 30).make()
    assert type(made) is kind
    if name != "none":
        assert made._time_attr == "epoch"
        assert made._metric == "loss"


def test_arguments_have_tunes_names() -> None:
    made = scheduler_of(_sweep(scheduler="asha", scheduler_args={"grace_period": 4, "reduction_factor": 2}), 16).make()
    assert [milestone for milestone, _ in made._brackets[0]._rungs] == [16, 8, 4]
    made = scheduler_of(_sweep(scheduler="pbt", scheduler_args={"perturbation_interval": 2}), 16).make()
    assert made._perturbation_interval == 2
    assert set(made._hyperparam_mutations) == set(SPACE)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"scheduler": "ashaa"}, "scheduler: 'ashaa' is none; did you mean 'asha'? give one of none, asha, hyperband"),
        ({"search": "optunaa"}, "search: 'optunaa' is none; did you mean 'optuna'?"),
        ({"scheduler": "ray.tune.schedulers.Nope"}, "ray.tune.schedulers.Nope cannot be imported"),
        ({"scheduler": "pathlib.Path"}, "pathlib.Path is none of Ray Tune's"),
        (
            {"scheduler_args": {"grace": 2}},
            "AsyncHyperBandScheduler has no argument 'grace'; did you mean 'grace_period'?",
        ),
        ({"scheduler_args": {"grace_period": 99}}, "must be <= max_t!; correct scheduler_args:"),
    ],
)
def test_what_tune_would_refuse_is_told_before_anything_starts(settings: dict[str, Any], told: str) -> None:
    def make() -> None:
        sweep = _sweep(**{"scheduler": "asha", **settings})
        scheduler_of(sweep, 30).make()
        searcher_of(sweep, 0, ()).make()

    with pytest.raises(ConfigError) as raised:
        make()
    assert told in str(raised.value)


def test_a_searcher_sees_its_earlier_choices_again() -> None:
    made = searcher_of(_sweep(search="optuna"), 3, [{"optim.lr": 0.1, "method.temperature": 0.2}]).make()
    assert isinstance(made, OptunaSearch)
    assert made._points_to_evaluate == [{"optim.lr": 0.1, "method.temperature": 0.2}]
    assert (made.metric, made.mode) == ("loss", "min")


def test_a_searcher_that_goes_on_does_not_draw_its_first_choices_again() -> None:
    def chosen(earlier: list[dict[str, float]]) -> list[float]:
        searcher = searcher_of(_sweep(search="optuna"), 3, earlier).make()
        searcher.set_search_properties("loss", "min", {key: domain(parse(key, SPACE[key])) for key in SPACE})
        return [searcher.suggest(f"trial {number}")["optim.lr"] for number in range(3)]

    first = chosen([])
    again = chosen([{"optim.lr": first[0], "method.temperature": 0.2}])
    assert again[0] == first[0]
    assert len({*first, *again}) == 5


def test_what_reaches_tune_is_shown_with_its_arguments() -> None:
    assert str(scheduler_of(_sweep(scheduler="asha", scheduler_args={"grace_period": 4}), 16)) == (
        "ray.tune.schedulers.ASHAScheduler(time_attr='epoch', metric='loss', mode='min', max_t=16, grace_period=4)"
    )
    shown = str(scheduler_of(_sweep(scheduler="pbt"), 16))
    assert (
        "hyperparam_mutations={optim.lr: {loguniform: [0.01, 1.0]}, method.temperature: {uniform: [0.1, 0.5]}}" in shown
    )
    assert str(searcher_of(_sweep(), 3)) == "ray.tune.search.BasicVariantGenerator(constant_grid_search=true)"


def test_no_more_trials_than_at_a_time_have_a_place_where_some_are_paused() -> None:
    def request(concurrent: int, may_pause: bool) -> dict[str, float]:
        kind = type("Own", (SweepTrial,), {"concurrent": concurrent, "may_pause": may_pause})
        return kind.default_resource_request({}).required_resources

    for concurrent in (1, 2, 3, 8, 16):
        share = request(concurrent, may_pause=True)[HEAD]
        of_its_run = 0.001  # Ray Train's cleaner of placement groups
        assert concurrent * (share + of_its_run) <= 1.0 < (concurrent + 1) * share + concurrent * of_its_run
    assert HEAD not in request(2, may_pause=False)


@pytest.mark.thorough
def test_an_object_of_tunes_is_taken_as_it_is(tmp_path: Path) -> None:
    base = load_config("quickstart", [f"storage={tmp_path}", "name=s"])
    searcher = ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=2)  # its class alone could not be made
    settings = {"search": f"{ConcurrencyLimiter.__module__}.ConcurrencyLimiter", "metric": "loss", "mode": "min"}
    run = SweepRun.of(base, SPACE, None, settings, searcher=searcher)
    assert run.searcher is searcher
    with pytest.raises(ConfigError, match="ConcurrencyLimiter refuses its arguments"):
        SweepRun.of(base, SPACE, None, settings)
