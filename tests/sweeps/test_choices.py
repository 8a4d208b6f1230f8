"""What Ray Tune is told of a space, and the trials that come of its choices."""

import json
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search import BasicVariantGenerator

from raysl.config.load import load_config
from raysl.sweeps.distributions import parse
from raysl.sweeps.load import from_tree
from raysl.sweeps.ray_tune import POINT, Choices, domain, encode, points, searcher_of
from raysl.sweeps.run import SweepRun
from raysl.sweeps.space import Space
from raysl.tune.trial import ALONE, Trial
from tests.weights.networks import saved, small_resnet

BASE = load_config("quickstart", ["seed=3"])


def _choices(space: dict[str, Any], **bases: Any) -> Choices:
    return Choices(Space.of(space), bases or {ALONE: BASE})


def test_each_distribution_is_the_one_of_tune_of_the_same_name() -> None:
    given = {
        "uniform": [0.1, 1.0], "loguniform": [0.1, 1.0], "randint": [1, 9], "lograndint": [1, 9],
        "quniform": [0.0, 1.0, 0.25], "qloguniform": [0.5, 4.0, 0.5], "qrandint": [2, 8, 2], "qlograndint": [2, 8, 2],
    }  # fmt: skip
    for kind, values in given.items():
        own, theirs = domain(parse("optim.lr", {kind: values})), getattr(tune, kind)(*values)
        assert own.domain_str == theirs.domain_str
        assert type(own.sampler) is type(theirs.sampler)
    assert domain(parse("a", {"choice": [1, [2, 3]]})).categories == [1, "[2, 3]"]
    assert domain(parse("a", {"grid": ["x", "y"]})) == {"grid_search": ["x", "y"]}


def test_settings_exist_where_their_condition_holds_and_lists_come_back_as_lists() -> None:
    choices = _choices(
        {
            "method.name": {"choice": ["simclr", "moco"]},
            "method.momentum": {"uniform": [0.9, 1.0], "when": {"method.name": "moco"}},
            "data.crop_scale": {"choice": [[0.2, 1.0], [0.5, 1.0]]},
        }
    )
    config = {"method.name": "simclr", "method.momentum": 0.95, "data.crop_scale": "[0.5, 1.0]"}
    assert choices.trial(config) == Trial({"method.name": "simclr", "data.crop_scale": [0.5, 1.0]}, 3)
    config["method.name"] = "moco"
    assert choices.trial(config).settings["method.momentum"] == 0.95
    assert choices.trial(choices.point(choices.trial(config))) == choices.trial(config)


def test_the_trials_of_a_dry_run_are_those_that_tune_chooses() -> None:
    space = {"optim.lr": {"loguniform": [0.01, 1.0]}, "method.temperature": {"grid": [0.1, 0.5]}}
    sweep = from_tree({"space": space, "trials": 3}, "")
    choices = _choices(space)
    told = list(choices.drawn(3, seed=7))
    assert [config["method.temperature"] for config in told] == [0.1, 0.5] * 3
    assert len({config["optim.lr"] for config in told}) == 3, "random values are the same beside each grid value"
    assert told[:4] == list(choices.drawn(2, seed=7)), "more trials change none of the first ones"
    generator = searcher_of(sweep, 7, ()).make()
    assert isinstance(generator, BasicVariantGenerator)
    experiment = {"s": {"run": "s", "config": choices.param_space(is_searched=False), "num_samples": 3}}
    tune.register_trainable("s", lambda config: None)
    generator.add_configurations(experiment)
    chosen = []
    while (trial := generator.next_trial()) is not None:
        chosen.append(trial.config)
    assert chosen == told


def test_each_configuration_is_tried_and_a_searcher_chooses_one() -> None:
    choices = _choices({"optim.lr": {"choice": [0.1]}}, one=BASE, other=load_config("quickstart", ["seed=5"]))
    assert [config["config"] for config in choices.drawn(1, 0)] == ["one", "other"]
    assert choices.param_space(is_searched=True)["config"].categories == ["one", "other"]
    assert choices.trial({"config": "other", "optim.lr": 0.1}) == Trial({"optim.lr": 0.1}, 5, "other")


def test_credentials_are_not_told_and_come_back() -> None:
    uri = "s3://key:secret@bucket/shards"
    choices = _choices({"data.path": {"choice": [uri, "s3://other/shards"]}})
    told = choices.param_space(is_searched=False)["data.path"].categories
    assert "secret" not in json.dumps(told)
    assert choices.trial({"data.path": told[0]}).settings == {"data.path": uri}


def test_trials_may_be_given_one_by_one() -> None:
    choices = _choices({"optim.lr": {"loguniform": [0.01, 1.0]}})
    trials = [Trial({"optim.lr": 0.1}, 4), Trial({"optim.lr": 0.2}, 5)]
    given = points(trials, choices)[POINT]["grid_search"]
    assert [choices.trial({POINT: point}) for point in given] == trials


@pytest.mark.parametrize("value", [0.1, 3, True, None, "moco"])
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert encode(value) is value


def test_weights_of_others_that_vary_are_converted_once_and_bring_their_backbone(tmp_path: Path) -> None:
    file = saved(small_resnet().state_dict(), tmp_path / "theirs.pth")
    base = load_config("quickstart", [f"storage={tmp_path}/runs"])
    space = {
        "method.weights": {"grid": [None, file]},
        "train.warm_heads": {"choice": ["1ep"], "when": {"method.weights": file}},
    }
    run = SweepRun.of(base, space, settings={"trials": 1})
    alone, theirs = (trial.run_of(run.bases, run.folder.uri) for trial in run.planned.values())
    assert (alone.method.weights, alone.backbone, alone.train.warm_heads) == (None, base.backbone, None)
    (converted,) = (tmp_path / "runs").iterdir()
    assert theirs.method.weights == str(converted)
    assert (theirs.backbone.width, theirs.backbone.num_stages) == (8, 4)
    assert str(theirs.train.warm_heads) == "1ep"
