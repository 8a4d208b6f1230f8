"""Messages about settings: all of them at once, each with what to type."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.process.screen import warnings_named
from raysl.sweeps.checks import check_trials
from raysl.sweeps.load import from_tree, load_starts
from raysl.sweeps.schema import SweepConfig
from raysl.train.prepare import prepare


def test_pythons_none_is_null_where_null_may_be() -> None:
    assert load_config("quickstart", ["train.clip_grad=None", "data.limit=None"]).train.clip_grad is None
    with pytest.raises(ConfigError, match=r"train\.epochs: 'None' is not of type int"):
        load_config("quickstart", ["train.epochs=None"])


def test_a_setting_below_the_name_of_a_benchmark_is_meant_there() -> None:
    with pytest.raises(ConfigError) as told:
        load_config("quickstart", ["linear.lr=0.1", "knn.k=5", "profiler.start=2"])
    linear, knn, profiler = str(told.value).splitlines()
    assert "no benchmark linear, which benchmarks.linear={} adds, and benchmarks.linear.lr is" in linear
    assert "did you mean optim" not in linear
    assert knn == "knn.k: no such setting; did you mean benchmarks.knn.k?"
    assert "callbacks.profiler.start" in profiler


def test_what_is_wrong_in_any_stage_is_told_at_once() -> None:
    words = ["=3", "data.path=$NOPE/x", "optim.lr=abc", "optim.warmup=200%", "train.epocs=3", "data.lanes=9999"]
    with pytest.raises(ConfigError) as told:
        load_config("simclr", words)
    lines = str(told.value).splitlines()
    assert len(lines) == len(words)
    for part in ("'=3' is not", "$NOPE is not set", "optim.lr: 'abc'", "200% is longer", "train.epochs?", "9999 lanes"):
        assert sum(part in line for line in lines) == 1, part
    with pytest.raises(ConfigError, match=r"no configuration 'simcrl'.*\noptim.lr: 'abc'"):
        load_config("simcrl", ["optim.lr=abc"])


def test_settings_of_what_was_left_out_are_not_blamed() -> None:
    with pytest.raises(ConfigError) as told:
        load_config("quickstart", ["data=photoss", "data.num_train=4", "train.epochs=x"])
    assert [line.partition(":")[0] for line in str(told.value).splitlines()] == ["data.name", "train.epochs"]


def test_settings_and_images_that_do_not_fit_are_told_at_once() -> None:
    words = ["train.batch_size=9999", "callbacks={checkpoint_keeper: {metric: nothing/here, mode: max}}"]
    with pytest.raises(ConfigError, match="9999"):
        prepare(load_config("quickstart", words))


def test_repeated_warnings_name_their_configuration_and_are_shown_once_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sweep = from_tree({"configs": ["digits/simclr", "digits/byol"], "settings": ["data=synthetic"]}, "")
    with caplog.at_level(logging.WARNING, logger="raysl"):
        load_starts(sweep)
    stays = [line for line in caplog.messages if "views=digits from data=digits stays" in line]
    assert [line.partition(": ")[0] for line in stays] == ["digits/simclr", "digits/byol"]
    caplog.clear()
    with warnings_named(""):
        for _ in range(2):
            logging.getLogger("raysl").warning("%s is odd", "a")
    assert caplog.messages == ["a is odd"]


def test_a_mistake_that_configurations_share_is_told_once(tmp_path: Path) -> None:
    names = ["digits/simclr", "digits/byol", "digits/moco", "digits/swav"]
    sweep = SweepConfig(configs=names, settings=["trian.epochs=3", "method.queue_size=x"], scheduler="none")
    with pytest.raises(ConfigError) as told:
        load_starts(sweep)
    lines = str(told.value).splitlines()
    assert [line for line in lines if "trian" in line] == [
        "digits/simclr, digits/byol, digits/moco and 1 more: trian.epochs: no such setting; did you mean train.epochs?"
    ]
    assert sum("'x' is not of type int" in line for line in lines) == 1
    assert any(line.startswith("digits/moco: method.queue_size: 'x'") for line in lines)
    sweep = SweepConfig(configs=names[:2], space={"optim.lr": {"choice": [-1, 0.1]}}, scheduler="none")
    starts = {name: replace(start, storage=str(tmp_path)) for name, start in load_starts(sweep).items()}
    with pytest.raises(ConfigError, match=r"^digits/simclr, digits/byol: optim\.lr: -1\.0 is out of range[^\n]*$"):
        check_trials(starts, sweep)


def test_the_first_configuration_of_a_sweep_is_the_first_of_several_or_the_only_one() -> None:
    assert SweepConfig(config="digits/moco").first_config == "digits/moco"
    assert SweepConfig(configs=["digits/byol", "digits/moco"]).first_config == "digits/byol"
