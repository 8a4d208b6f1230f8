"""Settings stated for a number of workers, on another one."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from raysl.checkpoint.checkpoint_folder import NewestCheckpoint
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.optim.build import lr_at
from raysl.plan.reference import describe_scaling, for_workers
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.train.file_names import METRICS_FILE
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.train.problem import SMALL, batches, differing, tensors_of

STEPS = ("optim.warmup=500st", "train.checkpoint_every=1000st", "train.log_every=10st", "train.eval_every=3st")


def config_of(workers: int, reference: int | None = 8, *overrides: str) -> RunConfig:
    words = [f"train.workers={workers}", f"train.reference_workers={reference or 'null'}", "train.batch_size=256"]
    return load_config("quickstart", [*words, *STEPS, *overrides])


@pytest.mark.parametrize(
    ("workers", "batch", "warmup", "checkpoints", "evaluations"),
    [(16, 512, "250st", "500st", "2st"), (2, 64, "2000st", "4000st", "12st"), (12, 384, "333st", "667st", "2st"),
     (80, 2560, "50st", "100st", "1st")],
)  # fmt: skip
def test_batches_grow_and_updates_shrink_with_the_ratio(
    workers: int, batch: int, warmup: str, checkpoints: str, evaluations: str
) -> None:
    scaled = for_workers(config_of(workers))
    train = scaled.train
    assert (train.batch_size, str(scaled.optim.warmup)) == (batch, warmup)
    assert (str(train.checkpoint_every), str(train.eval_every), str(train.log_every)) == (
        checkpoints, evaluations, "10st"
    )  # fmt: skip
    assert train.batch_size / workers == 256 / 8
    assert for_workers(scaled) is scaled


@pytest.mark.parametrize("workers", [8, 3])
def test_nothing_changes_on_the_reference_or_without_one(workers: int) -> None:
    config = config_of(workers, 8 if workers == 8 else None)
    assert for_workers(config) is config
    assert describe_scaling(config) is None


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 2.0), ("sqrt", 2**0.5), ("none", 2.0)])
def test_the_learning_rate_follows_the_batch(scaling: str, factor: float) -> None:
    peaks = []
    for workers in (8, 16):
        config = config_of(workers, 8, f"optim.lr_scaling={scaling}", "optim.lr=0.25", "optim.warmup=0ep")
        plan = TrainPlan.from_config(config, 10_000, workers)
        peaks.append(lr_at(plan.optim, plan.step(0), plan.batch_size))
    assert peaks[1] == peaks[0] * factor
    assert for_workers(config_of(16, 8, "optim.lr_scaling=none", "optim.head_lr=0.5")).optim.head_lr == 1.0
    assert for_workers(config_of(16, 8, "optim.head_lr=0.5")).optim.head_lr == 0.5


def test_points_phases_and_lengths_of_a_method_follow_and_shares_stay() -> None:
    steps = for_workers(
        config_of(16, 8, "optim.schedule=steps", "optim.decay_at=[100st,60%,30ep]", "optim.warmup=0st")
    ).optim
    assert [str(point) for point in steps.decay_at] == ["50st", "60%", "30ep"]
    assert str(steps.warmup) == "0st"
    phases = "[{shape: linear, length: 600st, start: 0, end: 1}, {shape: cosine, length: 3ep, start: 1, end: 0}]"
    parted = for_workers(config_of(16, 8, "optim.warmup=10ep", f"optim.phases={phases}")).optim
    assert [str(phase.length) for phase in parted.phases] == ["300st", "3ep"]
    swav: Any = for_workers(config_of(2, 8, "method=swav")).method
    assert (str(swav.freeze_prototypes), str(swav.queue_from)) == ("1252st", "15ep")


def test_an_epoch_is_an_epoch_and_what_is_done_is_told(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(2, 8, "train.batch_size=64", "optim.warmup=10st", "train.checkpoint_every=1ep")
    told = (
        "train.workers=2 for train.reference_workers=8: train.batch_size 64 -> 16, peak learning rate 0.25 -> 0.0625 "
        "(optim.lr_scaling=linear), optim.warmup 10st -> 40st, train.eval_every 3st -> 12st"
    )
    assert describe_scaling(config) == told
    with caplog.at_level(logging.INFO, logger="raysl"):
        run = prepare(config)
    assert told in caplog.messages
    assert (run.setup.plan.batch_size, run.setup.plan.rows) == (16, [8, 8])
    assert run.setup.plan.total_steps == run.setup.data.num_samples // 16 * config.train.epochs
    assert run.setup.as_written is config
    assert run.config.train.batch_size == 16


@pytest.mark.parametrize(
    ("batch", "reference", "told"),
    [
        (
            100,
            8,
            r"train.batch_size=100 is not shared evenly by train.reference_workers=8, .* train.batch_size=96 or 104",
        ),
        (4, 8, r"train.batch_size=8, or leave reference_workers out"),
    ],
)
def test_batches_that_would_be_uneven_are_refused(batch: int, reference: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prepare(config_of(2, reference, f"train.batch_size={batch}"))


@pytest.mark.thorough
def test_the_run_is_that_of_the_settings_it_comes_to(tmp_path: Path) -> None:
    def trained(folder: str, *words: str) -> TrainState:
        config = load_config("quickstart", [*SMALL, "optim.lr=0.1", *words])
        setup = Setup.of(config, 48)
        state = TrainState.create(setup)
        fit(state, state.method, setup.plan, batches(setup.plan), reporter=LocalReporter(tmp_path / folder))
        return state

    scaled = trained("a", "train.batch_size=24", "train.reference_workers=2", "optim.warmup=2st")
    direct = trained("b", "train.batch_size=12", "optim.warmup=4st")
    assert scaled.step == direct.step == 8
    assert differing(tensors_of(scaled), tensors_of(direct)) == []
    written = (tmp_path / "a" / "checkpoint_000000008" / "run.yaml").read_text()
    assert "batch_size: 24" in written
    assert "warmup: 2st" in written


@pytest.mark.thorough
def test_a_run_that_has_begun_keeps_its_workers(tmp_path: Path) -> None:
    config = dataclasses.replace(config_of(2), storage=str(tmp_path))
    RunFolder.of(config).claim(config, NewestCheckpoint(None, {}))
    RunFolder.of(config).write(METRICS_FILE, b'{"step": 1, "loss": 2.5}\n')
    RunFolder.of(config).claim(config, NewestCheckpoint(None, {}))
    other = dataclasses.replace(config, train=dataclasses.replace(config.train, workers=4))
    with pytest.raises(ConfigError, match=r"train.workers: 2 -> 4, which changes the batch size, as train.ref"):
        RunFolder.of(other).claim(other, NewestCheckpoint(None, {}))
    free = dataclasses.replace(config, name="free", train=dataclasses.replace(config.train, reference_workers=None))
    RunFolder.of(free).claim(free, NewestCheckpoint(None, {}))
    freed = dataclasses.replace(free, train=dataclasses.replace(free.train, workers=4))
    RunFolder.of(freed).claim(freed, NewestCheckpoint(None, {}))
