"""A run that is trained to the end of an epoch and gone on with is the run that was never paused."""

from pathlib import Path

import pytest
import ray
import yaml

from raysl.checkpoint.checkpoint_folder import checkpoint_name, read_meta
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.pretraining import Result, pretrain
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.stop import Pause
from raysl.train.state import TrainState
from tests.runs.runs import SMALL, assert_same, logged_step, tensors
from tests.train.problem import batches, differing, problem, tensors_of


def trained(folder: Path | None, *pauses: int) -> TrainState:
    """A run of 4 epochs of 4 steps in this process, by one start for each pause and one to its end."""
    for last in (*pauses, None):
        state, plan = problem("train.epochs=4")
        reporter = LocalReporter(folder)
        if (restored := reporter.restore()) is not None:
            state.load(restored)
        callbacks = [] if last is None else [Pause(last)]
        fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=reporter)
        assert state.step == (last or plan.total_steps)
    return state


@pytest.mark.thorough
def test_a_pause_saves_a_checkpoint_just_there_and_changes_no_bit(tmp_path: Path) -> None:
    paused = trained(tmp_path, 8)
    assert (tmp_path / checkpoint_name(8)).is_dir(), "which train.checkpoint_every=100st would not have saved"
    assert differing(tensors_of(trained(None)), tensors_of(paused)) == []


@pytest.mark.thorough
def test_a_checkpoint_between_two_logged_lines_has_its_step_and_epoch(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    metrics = read_meta(Folder(str(tmp_path / checkpoint_name(3))))["metrics"]
    assert (metrics["step"], metrics["epoch"]) == (3, 0.75)


@pytest.mark.thorough
def test_a_restart_behind_the_pause_makes_no_step(tmp_path: Path) -> None:
    trained(tmp_path, 8, 8)
    assert [path.name for path in sorted(tmp_path.glob("checkpoint_*"))] == [checkpoint_name(8), checkpoint_name(16)]


def config_of(tmp_path: Path, *words: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, "train.epochs=4", f"storage={tmp_path}", "name=one", *words])


def begun(config: RunConfig, step: int, logged: int | None = None) -> Result:
    """What a call that trains to the end of epoch 2 of 4 gives for a run with a checkpoint at a step.

    Args:
        config: settings of the run.
        step: of the checkpoint.
        logged: step of the last logged line; default: the same.
    """
    folder, state = RunFolder.of(config), TrainState.create(Setup.of(config, 256, 10))
    state.step = step
    folder.claim(config)
    folder.write("metrics.jsonl", b'{"step": %d, "loss": 2.5}\n' % (step if logged is None else logged))
    state.save(Path(folder.path) / checkpoint_name(step), {})
    return pretrain(config, until=2, show_progress=False)


@pytest.mark.thorough
@pytest.mark.parametrize("step", [16, 24])
def test_a_paused_run_is_neither_measured_nor_judged(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")  # there is nothing to train
    result = begun(config_of(tmp_path, "benchmarks=[knn]", "train.expect={loss: [0, 1]}"), step)
    assert result.report is None
    assert result.checkpoint.endswith(checkpoint_name(step))
    assert result.metrics["loss"] == 2.5
    settings = yaml.safe_load((tmp_path / "one" / "run.yaml").read_text())
    assert settings["train"]["epochs"] == 4
    assert "until" not in str(settings), "it is no setting"


@pytest.mark.thorough
def test_the_metrics_of_a_pause_have_the_step_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")
    result = begun(config_of(tmp_path), step=16, logged=10)
    assert result.metrics["step"] == 16
    assert repr(result).startswith("step 16 ")
    assert list(result.history["step"]) == [10]


def test_no_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="until: 0 is not an epoch to train to; give 1 to 4, or nothing"):
        pretrain(config_of(tmp_path), until=0)
    assert not (tmp_path / "one").exists()


@pytest.mark.slow
def test_a_run_paused_at_2_of_4_epochs_ends_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    words = ["train.checkpoint_every=100%", "benchmarks=[knn]"]
    half = pretrain(config_of(tmp_path, *words), until=2, show_progress=False)
    run = tmp_path / "one"
    assert half.report is None
    assert (logged_step(run), Path(half.checkpoint).name) == (16, checkpoint_name(16))
    whole = pretrain(config_of(tmp_path, *words), until=9, show_progress=False)
    assert "knn/k20/top1" in whole.metrics
    calm = pretrain(config_of(tmp_path, *words, "name=calm"), show_progress=False)
    assert_same(tensors(tmp_path / "calm"), tensors(run))
    assert list(whole.history["loss"]) == list(calm.history["loss"])
    assert whole.metrics["knn/k20/top1"] == calm.metrics["knn/k20/top1"]
    ray.shutdown()
