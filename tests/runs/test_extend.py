"""A run may get more epochs, once the user has read what that does to its learning rate, and never fewer."""

import json
import re
from pathlib import Path

import pytest
import ray
import yaml

from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.pretraining import pretrain
from raysl.runs.folder import RunFolder
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.train.callbacks.logs import MetricsLog, parse_metrics
from raysl.train.state import TrainState
from tests.runs.runs import finish, start
from tests.train.problem import SMALL, StopAt, batches

IMAGES = (48, 0)  # and classes; 4 steps in an epoch of batches of 12
BEGAN = ("train.epochs=5", "optim.warmup=10%", "optim.lr=0.5", "train.log_every=1st")


def config_of(tmp_path: Path, *words: str) -> RunConfig:
    words = (*SMALL, *BEGAN, f"storage={tmp_path}", "name=one", "benchmarks=[]", "data.limit=48", *words)
    return load_config("quickstart", words)


def train(config: RunConfig, until: int | None = None) -> RunFolder:
    """Go on with a run in this process, to its end or to a step."""
    folder = RunFolder.of(config)
    folder.claim(config, folder.newest())
    plan = TrainPlan.from_config(config, IMAGES[0])
    state, reporter = (
        TrainState.create(Setup.of(config, *IMAGES)),
        LocalReporter(folder.path),
    )
    if (restored := reporter.restore()) is not None:
        state.load(restored)
    stops = [] if until is None else [StopAt(until)]
    callbacks = [MetricsLog(Path(folder.path)), *stops]
    fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=reporter)
    return folder


def rates(folder: RunFolder) -> dict[int, float]:
    """The learning rates that were used, by the number of updates before."""
    return {int(line["step"]) - 1: line["lr"] for line in parse_metrics(folder.read("metrics.jsonl"))}


def refusal(config: RunConfig) -> str:
    """What a start is refused with, before anything is written."""
    folder = RunFolder.of(config)
    before = folder.read("run.yaml")
    with pytest.raises(ConfigError) as refused:
        folder.claim(config, folder.newest())
    assert folder.read("run.yaml") == before
    return str(refused.value)


@pytest.mark.thorough
@pytest.mark.parametrize("until", [None, 7])
def test_more_epochs_are_refused_with_the_learning_rates_that_training_then_has(
    tmp_path: Path, until: int | None
) -> None:
    folder = train(config_of(tmp_path), until)
    step = until or 20
    text = refusal(config_of(tmp_path, "train.epochs=8"))
    assert text.startswith("train.epochs: 5 -> 8 extends the run 'one': ")
    assert text.splitlines()[-1].startswith("set train.extend=true to accept these changes, train.epochs=5 to keep")
    told = re.search(
        rf"it is at step {step} of 20, where the learning rate was (\S+) .* 32 steps and goes on at (\S+);", text
    )
    assert told
    last = rates(folder)[step - 1]
    train(config_of(tmp_path, "train.epochs=8", "train.extend=true"))
    used = rates(folder)
    assert list(used) == list(range(32))
    assert (float(told[1]), float(told[2])) == (pytest.approx(last, rel=1e-3), pytest.approx(used[step], rel=1e-3))
    assert used[step] > 1.01 * last, "the curve of the longer run is above that of the shorter one"
    assert "the warm-up of 10% is 3 steps instead of 2" in text
    (event,) = [json.loads(line)["event"] for line in folder.read("events.jsonl").splitlines()]
    assert event.startswith(f"extended from 5 to 8 epochs: it is at step {step} of 20")


@pytest.mark.thorough
def test_a_warm_up_that_begins_again_is_told(tmp_path: Path) -> None:
    train(config_of(tmp_path, "optim.warmup=50%"), until=12)
    text = refusal(config_of(tmp_path, "optim.warmup=50%", "train.epochs=20"))
    assert "the warm-up of 50% is 40 steps instead of 10, so that it warms up again" in text
    assert "goes on at 0.007617;" in text, "13 / 40 of 0.5 * 12 / 256"


@pytest.mark.thorough
def test_the_run_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    train(config_of(tmp_path))
    with pytest.raises(ConfigError, match=r"train\.epochs: 5 -> 8 extends the run 'one'"):
        pretrain(config_of(tmp_path, "train.epochs=8"))
    assert not ray.is_initialized()


@pytest.mark.thorough
@pytest.mark.parametrize("word", ["train.extend=false", "train.extend=true"])
def test_fewer_epochs_are_refused(tmp_path: Path, word: str) -> None:
    train(config_of(tmp_path), until=7)
    text = refusal(config_of(tmp_path, "train.epochs=4", word))
    assert text == (
        "train.epochs: 5 -> 4 would make the run 'one' shorter, which has followed the learning rate of 5 epochs up to "
        "step 7; set train.epochs=5, or give this one another name="
    )


@pytest.mark.thorough
def test_an_extension_that_saved_nothing_may_be_taken_back(tmp_path: Path) -> None:
    folder = train(config_of(tmp_path))
    longer = config_of(tmp_path, "train.epochs=8", "train.extend=true")
    folder.claim(longer, folder.newest())
    assert "extends the run" in refusal(config_of(tmp_path, "train.epochs=8")), "until it has saved a checkpoint"
    train(config_of(tmp_path))
    train(longer, until=21)
    assert "shorter" in refusal(config_of(tmp_path))
    train(config_of(tmp_path, "train.epochs=8"))
    assert len(rates(folder)) == 32, "the longer run is the run now, and resumed like any other"


@pytest.mark.thorough
def test_without_a_longer_run_the_consent_does_nothing(tmp_path: Path) -> None:
    folder = train(config_of(tmp_path, "train.extend=true"), until=7)
    train(config_of(tmp_path, "train.extend=true"))
    assert not folder.exists("events.jsonl")
    assert rates(folder) == rates(train(config_of(tmp_path / "other")))


@pytest.mark.thorough
def test_a_run_that_has_not_saved_a_step_may_have_any_length(tmp_path: Path) -> None:
    folder = RunFolder.of(config_of(tmp_path))
    for epochs in (5, 9, 3):
        folder.claim(config_of(tmp_path, f"train.epochs={epochs}"), folder.newest())
        stored = yaml.safe_load((Path(folder.path) / "run.yaml").read_text())
        assert stored["train"]["epochs"] == epochs


@pytest.mark.slow
def test_a_finished_run_is_extended_and_measured_again(tmp_path: Path) -> None:
    finish(start(tmp_path, "one", "train.epochs=2", "benchmarks={knn: {}}"))
    first = json.loads((tmp_path / "one" / "report.json").read_text())
    refused = start(tmp_path, "one", "train.epochs=4", "benchmarks={knn: {}}")
    output, _ = refused.communicate(timeout=100)
    assert refused.returncode == 2
    assert "it is at step 16 of 16" in output
    assert "Traceback" not in output
    output = finish(start(tmp_path, "one", "train.epochs=4", "train.extend=true", "benchmarks={knn: {}}"))
    assert "extended from 2 to 4 epochs" in output
    assert "resumed at step 16 of 32" in output
    second = json.loads((tmp_path / "one" / "report.json").read_text())
    assert first["checkpoint"].endswith("checkpoint_000000016")
    assert second["checkpoint"].endswith("checkpoint_000000032")
