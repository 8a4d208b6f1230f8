"""Runs as trials of a Ray Tune of one's own: what a trial reports, what its checkpoints say, and whom it forks from."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import raysl
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.checkpoint.lineage import read_parents
from raysl.checkpoint.tensors import load_tensors
from raysl.cluster import connection
from raysl.cluster.connection import cluster_resources, share_cluster
from raysl.cluster.growth import NodeGroup
from raysl.cluster.resources import Resources, worker_shape
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError, RunFailed, Stopped
from raysl.methods.method import StepOutput
from raysl.pretraining import Result
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.schedule import Duration, Step
from raysl.storage.owner import own_folder
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.logs import MetricsLog, parse_metrics
from raysl.train.file_names import note_event
from raysl.train.history import frame
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.tune.run_trainable import Pointer, RunTrainable, _find_checkpoint, flatten_space, trainable
from raysl.tune.trial import Trial
from tests.processes import wait_until
from tests.runs.runs import SMALL, assert_same, kill_driver

EPOCHS, LENGTH = 3, 8


class Noting(LocalReporter):
    """Notes what it has saved, as the reporter of a run does."""

    def report(self, metrics: dict[str, float], save: Any) -> None:
        """See `Reporter.report`."""
        super().report(metrics, save)
        assert self.folder is not None
        note_event(self.folder, f"saved {checkpoint_name(int(metrics['step']))}", "save")


class Gate(Callback):
    """Holds training after each epoch until it is let on, or has it stop where it is asked to."""

    def __init__(self, may_go_on: Callable[[], bool], stop: threading.Event) -> None:
        self.may_go_on, self.asked = may_go_on, stop

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.in_epoch == 1 and step.index > 1:
            while not self.may_go_on():
                if self.asked.is_set():
                    run.stop("asked to")
                    return


def in_process(
    config: RunConfig,
    show_progress: bool,
    stop: threading.Event,
    may_go_on: Callable[[], bool] = lambda: (time.sleep(0.2), True)[1],
) -> Result:
    """What `raysl.pretrain` does, without workers: longer epochs than these small ones have."""
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    with own_folder(folder):
        begin(run, folder)
        state, reporter = TrainState.create(run.setup), Noting(folder.path, config.train.keep_checkpoints)
        if (restored := reporter.restore()) is not None:
            state.load(restored)
        batches = LocalBatches(replace(run.loader, augment_in_task=True))
        callbacks = [MetricsLog(Path(folder.path)), Gate(may_go_on, stop)]
        fit(state, state.method, run.setup.plan, batches, callbacks=callbacks, reporter=reporter)
        if stop.is_set():
            raise Stopped("asked to")
    lines = parse_metrics(folder.read("metrics.jsonl"))
    metrics = {**lines[-1], "knn/k20/top1": 50.0}
    return Result(folder.uri_of(checkpoint_name(state.step)), metrics, frame(lines), folder.uri, None)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Runs train in this process, an epoch each time that it is released."""
    may_go_on = threading.Semaphore(0)
    monkeypatch.setattr(
        "raysl.tune.run_trial.pretrain", partial(in_process, may_go_on=partial(may_go_on.acquire, timeout=0.01))
    )
    return may_go_on


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[RunTrainable]]:
    monkeypatch.setattr("raysl.tune.run_trainable.connect", lambda with_state: None)
    monkeypatch.setattr("raysl.tune.run_trainable.cluster_resources", lambda: Resources(8, 0))
    words = ["data.limit=64", "train.batch_size=8", f"train.epochs={EPOCHS}", "train.checkpoint_every=1ep"]
    config = load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=mine"])
    made: list[Any] = []
    kind: Any = trainable(config, concurrent=16)
    yield type("Noted", (kind,), {"__init__": lambda self, config: (made.append(self), kind.__init__(self, config))[1]})
    for trial in made:
        trial.stop()
    share_cluster(0)


def state_at(tmp_path: Path, name: str, step: int) -> dict[str, Any]:
    return load_tensors(tmp_path / "mine" / name / checkpoint_name(step) / "train_state.pt")


@pytest.mark.thorough
def test_a_trial_reports_each_epoch_and_in_the_end_what_was_measured(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    trial = base({"optim": {"lr": 0.25}})
    first = trial.train()
    assert (first["step"], first["epoch"], first["done"]) == (LENGTH, 1.0, False)
    gate.release(EPOCHS)
    second, last = trial.train(), trial.train()
    assert (second["step"], second["epoch"]) == (2 * LENGTH, 2.0)
    assert (last["step"], last["epoch"], last["done"], last["knn/k20/top1"]) == (3 * LENGTH, 3.0, True, 50.0)
    run = RunFolder(str(tmp_path / "mine" / Trial({"optim.lr": 0.25}, 0).name))
    losses = {line["step"]: line["loss"] for line in parse_metrics(run.read("metrics.jsonl"))}
    assert [found["loss"] for found in (first, second, last)] == [losses[LENGTH * epoch] for epoch in (1, 2, 3)]
    assert "lr: 0.25" in run.read("run.yaml").decode()
    assert {found["path"] for found in (first, second, last)} == {run.uri}
    assert b"knn/k20/top1" in run.read("hparams/events.out.tfevents.hparams"), "TensorBoard's tab has the last numbers"


@pytest.mark.thorough
def test_a_trial_that_was_trained_before_reports_the_same_numbers_and_trains_no_step(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.release(EPOCHS)
    trial = base({"optim.lr": 0.25})
    told = [trial.train() for _ in range(EPOCHS)]
    trial.stop()
    trained: list[str] = []
    monkeypatch.setattr(
        "raysl.tune.run_trial.pretrain",
        lambda config, **words: trained.append(config.name) or in_process(config, **words),
    )
    again = base({"optim.lr": 0.25})
    keys = ("loss", "epoch", "step", "done", "path")
    for number in range(EPOCHS - 1):
        found = again.train()
        assert [found[key] for key in keys] == [told[number][key] for key in keys]
    assert trained == [], "a scheduler that stops it here costs nothing"
    last = again.train()
    assert [last[key] for key in keys] == [told[-1][key] for key in keys]
    assert last["knn/k20/top1"] == told[-1]["knn/k20/top1"]


@pytest.mark.thorough
def test_epochs_without_a_checkpoint_are_reported_too(
    base: type[RunTrainable], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(
        "Seldom",
        (base,),
        {
            "bases": {
                "": replace(base.bases[""], train=replace(base.bases[""].train, checkpoint_every=Duration.parse("3ep")))
            }
        },
    )
    monkeypatch.setattr("raysl.tune.run_trial.pretrain", in_process)
    trial = kind({"optim.lr": 0.25})
    assert [trial.train()["epoch"] for _ in range(EPOCHS)] == [1.0, 2.0, 3.0]


@pytest.mark.thorough
def test_a_trial_with_anothers_checkpoint_goes_on_from_its_weights(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    donor = base({"optim.lr": 0.25})
    donor.train()
    (tmp_path / "note").mkdir()
    donor.save_checkpoint(str(tmp_path / "note"))
    name = Trial({"optim.lr": 0.25}, 0).name
    assert Pointer.read(str(tmp_path / "note")) == Pointer(name, LENGTH, donor.trial_id, {"optim.lr": 0.25})
    donor.stop()

    heir = base({"optim.lr": 0.5})
    heir.load_checkpoint(str(tmp_path / "note"))
    gate.release(1)
    found = heir.train()
    child = Trial({"optim.lr": 0.5}, 0, parent=(name, LENGTH)).name
    assert (found["epoch"], heir.trial.name) == (2.0, child)
    assert_same(state_at(tmp_path, name, LENGTH), state_at(tmp_path, child, LENGTH))
    assert [(own.run, own.step) for own in read_parents(RunFolder(str(tmp_path / "mine" / child)))] == [(name, LENGTH)]

    (tmp_path / "own").mkdir()
    heir.save_checkpoint(str(tmp_path / "own"))
    heir.stop()
    again = base({"optim.lr": 0.5})
    again.load_checkpoint(str(tmp_path / "own"))
    gate.release(1)
    assert again.train()["done"]
    assert again.trial.name == child, "with its own checkpoint it goes on with its own run"


@pytest.mark.thorough
def test_a_trial_that_is_stopped_saves_and_leaves_its_run_unlocked(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    trial = base({"optim.lr": 0.25})
    trial.train()
    trial.stop()
    run = RunFolder(str(tmp_path / "mine" / Trial({"optim.lr": 0.25}, 0).name))
    with own_folder(run):
        assert run.newest().step == LENGTH + 1
    assert trial.reset({"optim.lr": 0.5})
    gate.release(EPOCHS)
    assert trial.train()["epoch"] == 1.0
    assert trial.trial.name == Trial({"optim.lr": 0.5}, 0).name


@pytest.mark.thorough
def test_what_a_paused_trial_has_saved_beyond_its_last_report_is_reported_when_it_goes_on(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    trial = base({"optim.lr": 0.25})
    assert trial.train()["epoch"] == 1.0
    run = RunFolder(str(tmp_path / "mine" / trial.trial.name))
    gate.release(1)
    while run.newest().step < 2 * LENGTH:
        time.sleep(0.01)
    trial.save_checkpoint(str(tmp_path))
    trial.stop()
    again = base({"optim.lr": 0.25})
    again.load_checkpoint(str(tmp_path))
    gate.release(EPOCHS)
    assert [again.train()["epoch"] for _ in range(2)] == [2.0, 3.0]


@pytest.mark.thorough
def test_two_trials_that_fork_alike_are_one_run_and_report_the_same(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    donor = base({"optim.lr": 0.25})
    donor.train()
    donor.save_checkpoint(str(tmp_path))
    donor.stop()
    gate.release(4 * EPOCHS)
    heirs = [base({"optim.lr": 0.5}), base({"optim.lr": 0.5})]
    for heir in heirs:
        heir.load_checkpoint(str(tmp_path))
        assert [heir.train()["epoch"] for _ in range(2)] == [2.0, 3.0]
    assert heirs[0].trial.name == heirs[1].trial.name


def test_what_ends_a_run_ends_its_trial(base: type[RunTrainable], monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(config: RunConfig, show_progress: bool, stop: threading.Event) -> Result:
        raise RunFailed("the loss is not finite at step 3")

    monkeypatch.setattr("raysl.tune.run_trial.pretrain", failed)
    with pytest.raises(RunFailed, match="not finite at step 3"):
        base({"optim.lr": 0.25}).train()
    with pytest.raises(ConfigError, match=r"optim\.lrr"):
        base({"optim.lrr": 0.25}).train()


@pytest.mark.thorough
def test_a_donor_that_has_deleted_the_checkpoint_gives_its_next_one(
    tmp_path: Path, base: type[RunTrainable], gate: threading.Semaphore
) -> None:
    donor = base({"optim.lr": 0.25})
    gate.release(EPOCHS)
    while not donor.train()["done"]:
        pass
    pointer = Pointer(donor.trial.name, LENGTH - 1, "another", {"optim.lr": 0.25})
    heir = base({"optim.lr": 0.25})
    pointer.write(str(tmp_path))
    heir.load_checkpoint(str(tmp_path))
    gate.release(EPOCHS)
    assert [heir.train()["epoch"] for _ in range(2)] == [1.0, 2.0]
    (parent,) = read_parents(RunFolder(str(tmp_path / "mine" / heir.trial.name)))
    assert (parent.run, parent.step) == (donor.trial.name, LENGTH)
    assert heir.trial.name != donor.trial.name, "also where the settings are the donor's"


def test_the_cluster_is_shared_and_enough_checkpoints_stay(
    base: type[RunTrainable], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = ray.cloudpickle.loads(ray.cloudpickle.dumps(base))
    assert (copy.bases, copy.concurrent) == (base.bases, 16), "it reaches the processes of the trials"
    monkeypatch.undo()
    monkeypatch.setattr(connection, "_nodes", lambda: [NodeGroup(cpus=8, gpus=0)])
    monkeypatch.setattr(connection, "_growth", lambda address: None)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here"))
    base({})
    have = cluster_resources()
    assert (have.trials, worker_shape(base.bases[""].train, have).cpus) == (16, 0.39), "(8 - 1.5 - 16 drivers) / 16"
    assert base.bases[""].train.keep_checkpoints == 4
    assert [dict(bundle) for bundle in base.default_resource_request({}).bundles] == [{"CPU": 0.01}]
    assert raysl.tune.trainable is trainable


@pytest.mark.parametrize(
    ("config", "concurrent", "told"),
    [
        ("quickstart", 0, "concurrent=0 is not a number of trials; give 1 or more"),
        ("quikstart", 1, "did you mean 'quickstart'"),
        ("quickstart", 900, "900 trials at a time of 1 worker do not fit the 8 CPUs"),
    ],
)
def test_bad_input_is_refused_on_the_driver(base: type[RunTrainable], config: str, concurrent: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        trainable(config, concurrent=concurrent)


def test_the_example_of_the_page_makes_a_tuner(base: type[RunTrainable], monkeypatch: pytest.MonkeyPatch) -> None:
    from ray import tune

    made: list[Any] = []

    class Found:
        metrics = {"path": "runs/population/trial_1", "knn_k20_top1": 61.5}

        def get_best_result(self) -> "Found":
            return self

    monkeypatch.setattr(tune.Tuner, "fit", lambda self: (made.append(self), Found())[1])
    page = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = (found for found in examples if "tune.Tuner(" in found)
    exec(example, {})
    (tuner,) = made
    space = tuner._local_tuner._param_space
    words = [f"{key}={domain.sample()}" for key, domain in space.items()]
    assert load_config("quickstart", words).optim.lr > 0


def test_settings_come_by_dotted_key_in_plain_numbers() -> None:
    import numpy as np

    space = {"optim": {"lr": np.float64(0.25), "momentum": 0.9}, "seed": np.int64(3), "data.mean": [0.1, 0.2, 0.3]}
    found = flatten_space(space)
    assert found == {"optim.lr": 0.25, "optim.momentum": 0.9, "seed": 3, "data.mean": [0.1, 0.2, 0.3]}
    assert [type(value) for value in found.values()] == [float, float, int, list]


def tuned(folder: Path, kind: Any, scheduler: Any, concurrent: int) -> Any:
    """The results of four trials, two of which learn nothing."""
    from ray import tune

    tuner = tune.Tuner(
        kind,
        param_space={"optim.lr": tune.grid_search([1e-6, 1e-5, 0.3, 0.5])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=scheduler, max_concurrent_trials=concurrent, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="notes", storage_path=str(folder / "tune"), verbose=0),
    )
    return tuner.fit()


class InProcess:
    """A trial whose run trains in its own process."""

    def setup(self, config: dict[str, Any]) -> None:
        """See `Trainable.setup`."""
        raysl.tune.run_trial.pretrain = in_process
        super().setup(config)  # type: ignore[misc]


@pytest.mark.slow
def test_tunes_own_population_based_training_copies_weights(tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    words = [f"train.epochs={EPOCHS}", "train.checkpoint_every=1ep", "train.keep_checkpoints=9"]
    config = load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=mine"])
    scheduler = PopulationBasedTraining(
        time_attr="epoch",
        perturbation_interval=1,
        quantile_fraction=0.5,
        synch=True,
        hyperparam_mutations={"optim.lr": tune.loguniform(0.1, 1.0)},
    )
    try:
        kind = type("InProcess", (InProcess, trainable(config, concurrent=4)), {})
        results = tuned(tmp_path, kind, scheduler, 4)
        assert not results.errors
        assert [found.metrics["epoch"] for found in results] == [EPOCHS] * 4
    finally:
        ray.shutdown()
    runs = [RunFolder(str(path)) for path in (tmp_path / "mine").glob("trial_*")]
    children = [(run, found[0]) for run in runs if (found := read_parents(run))]
    assert {parent.epoch for _, parent in children} == {1.0, 2.0}, "two generations"
    for run, parent in children:
        there = state_at(tmp_path, parent.run, parent.step)
        assert_same(there, state_at(tmp_path, run.uri.rpartition("/")[2], parent.step))
        with own_folder(run):
            assert f"forked from {parent.run} at step {parent.step}" in run.read("events.jsonl").decode()


@pytest.mark.slow
def test_trials_that_tunes_own_asha_stops_give_back_their_runs_and_places(tmp_path: Path) -> None:
    from ray.tune.schedulers import ASHAScheduler

    words = ["train.epochs=40", "train.checkpoint_every=10ep", "benchmarks={knn: {rivals: []}}"]
    config = load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=mine"])
    scheduler = ASHAScheduler(time_attr="epoch", max_t=40, grace_period=10, reduction_factor=2)
    try:
        results = tuned(tmp_path, trainable(config, concurrent=2), scheduler, 2)
        assert not results.errors
        reached = [found.metrics["epoch"] for found in results]
        assert max(reached) == 40.0 > min(reached) >= 10.0
        measured = [found for found in results if "knn/k20/top1" in found.metrics]
        assert [found.metrics["epoch"] for found in measured] == [40.0] * len(measured)
        end = time.monotonic() + 60
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < end, "a trial that was stopped holds CPUs"
            time.sleep(0.2)
    finally:
        ray.shutdown()
    for found in results:
        run = RunFolder(found.metrics["path"])
        with own_folder(run):
            assert run.newest().step >= 8 * found.metrics["epoch"]


SCRIPT = """
import sys

import raysl
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

words = [*{words}, "storage=" + sys.argv[1], "name=mine"]
config = raysl.load_config("quickstart", words)
trainable = raysl.tune.trainable(config, concurrent=2)
if tune.Tuner.can_restore(sys.argv[1] + "/tune/notes"):
    tuner = tune.Tuner.restore(sys.argv[1] + "/tune/notes", trainable, resume_errored=True)
else:
    tuner = tune.Tuner(
        trainable,
        param_space={{"optim.lr": tune.loguniform(1e-6, 1.0)}},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=6,
            max_concurrent_trials=2,
            search_alg=OptunaSearch(seed=1),
            scheduler=ASHAScheduler(time_attr="epoch", max_t=8, grace_period=2, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name="notes", storage_path=sys.argv[1] + "/tune", verbose=0),
    )
results = tuner.fit()
assert not results.errors, results.errors
for found in results:
    print("trial", found.metrics["path"], found.metrics["epoch"], found.metrics.get("knn/k20/top1"))
"""


def test_a_stop_while_a_parents_checkpoint_is_uploaded_takes_no_other_one(tmp_path: Path) -> None:
    run = load_config("quickstart", [f"storage={tmp_path}", "name=parent", *SMALL])
    TrainState.create(prepare(run).setup).save(tmp_path / "parent" / checkpoint_name(4), {})
    source, stop = RunFolder.of(run), threading.Event()
    assert _find_checkpoint(source, 4, stop) == checkpoint_name(4)
    stop.set()
    with pytest.raises(Stopped, match="still uploads the checkpoint to go on from"):
        _find_checkpoint(source, 8, stop)


@pytest.mark.slow
def test_a_plain_script_with_tunes_scheduler_and_searcher_is_killed_and_restored(tmp_path: Path) -> None:
    words = [*SMALL, "train.epochs=8", "train.checkpoint_every=1ep", "benchmarks={knn: {rivals: []}}"]
    (tmp_path / "search.py").write_text(SCRIPT.format(words=words))
    command = [sys.executable, str(tmp_path / "search.py"), str(tmp_path)]
    script = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: script.poll() is not None or len([*(tmp_path / "mine").glob("trial_*/metrics.jsonl")]) > 2, 300)
    assert script.poll() is None, script.communicate()[0]
    kill_driver(script)
    logs = {path: path.read_text().splitlines() for path in (tmp_path / "mine").glob("trial_*/metrics.jsonl")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("trial ")]
    assert len(trials) == 6
    assert max(float(epoch) for _, epoch, _ in trials) == 8.0
    assert all((measured == "None") == (float(epoch) < 8) for _, epoch, measured in trials), "full runs are measured"
    for path, before in logs.items():
        now = [parse_metrics(line.encode() + b"\n")[0]["step"] for line in path.read_text().splitlines()]
        assert now == sorted(set(now)), "no step is logged twice"
        assert len(now) >= len(before) - LENGTH, "no epoch of the first start is lost"
