"""A forked run has everything of its parent's checkpoint, and settings of its own from there on."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.checkpoint.lineage import Parent, read_parents
from raysl.checkpoint.tensors import load_tensors
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.runs.fork import fork
from raysl.schedule import Step
from raysl.storage.owner import OwnerTimes
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.logs import MetricsLog, parse_metrics
from raysl.train.callbacks.stop import Pause
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.faults import Faults
from tests.runs.runs import SMALL, assert_same

LENGTH = 8  # steps in an epoch
WORDS = ("train.epochs=3", "train.checkpoint_every=1ep", "data.limit=64", "train.batch_size=8", "optim.warmup=0st")


def config_of(storage: Path | str, name: str, *words: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, *WORDS, f"storage={storage}", f"name={name}", *words])


class Steps(Callback):
    """Counts the steps that it has seen."""

    seen = 0

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        self.seen += 1

    def state_dict(self) -> dict[str, int]:
        """See `Callback.state_dict`."""
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """See `Callback.load_state_dict`."""
        self.seen = state.get("seen", 0)


def train(config: RunConfig, until: int | None = None) -> tuple[RunFolder, TrainState]:
    """Go on with a run in this process, to its end or to a step, as its driver and its worker would."""
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    begin(run, folder)
    state, reporter = TrainState.create(run.setup), LocalReporter(folder.path, config.train.keep_checkpoints)
    if (restored := reporter.restore()) is not None:
        state.load(restored)
    callbacks: list[Callback] = [MetricsLog(Path(folder.path)), Steps(), *([] if until is None else [Pause(until)])]
    for callback in callbacks:
        callback.load_state_dict(state.callbacks.get(callback.state_key, {}))
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    fit(state, state.method, run.setup.plan, batches, callbacks=callbacks, reporter=reporter)
    return folder, state


def state_at(folder: RunFolder, step: int) -> dict[str, object]:
    return load_tensors(Path(folder.path) / checkpoint_name(step) / "train_state.pt")


def losses(folder: RunFolder) -> dict[int, float]:
    return {int(line["step"]): line["loss"] for line in parse_metrics(folder.read("metrics.jsonl"))}


@pytest.fixture
def parent(tmp_path: Path) -> RunFolder:
    """A run of 3 epochs that has done 2, with the checkpoints of both."""
    return train(config_of(tmp_path, "parent"), until=2 * LENGTH)[0]


@pytest.mark.thorough
def test_the_copy_is_exact_and_other_settings_count_from_there_on(tmp_path: Path, parent: RunFolder) -> None:
    config = config_of(tmp_path, "child", "optim.lr=0.7", "method.temperature=0.2", "optim.momentum=0.3")
    fork(config, parent.uri_of(checkpoint_name(LENGTH)))
    child = RunFolder.of(config)
    before, copy = state_at(parent, LENGTH), state_at(child, LENGTH)
    groups = copy["optimizer"]["param_groups"]  # type: ignore[index]
    assert [group.pop("momentum") for group in groups] == [0.3, 0.3]
    assert [group.pop("momentum") for group in before["optimizer"]["param_groups"]] == [0.9, 0.9]  # type: ignore[index]
    assert_same(before, copy)
    assert [child.exists(f"{checkpoint_name(step)}/meta.json") for step in (LENGTH, 2 * LENGTH)] == [True, False]
    _, state = train(config, until=2 * LENGTH)
    assert {group["momentum"] for group in state.optimizer.param_groups} == {0.3}
    assert state.callbacks["Steps"] == {"seen": 2 * LENGTH}, "a callback goes on with what its parent's has seen"
    assert "temperature: 0.2" in child.read(f"{checkpoint_name(2 * LENGTH)}/run.yaml").decode()
    here, there = losses(child), losses(parent)
    assert list(here) == list(there) == list(range(1, 2 * LENGTH + 1))
    same = [step for step in here if here[step] == there[step]]
    assert same == list(range(1, LENGTH + 1)), "the parent's history up to the fork, its own behind it"


@pytest.mark.thorough
def test_a_fork_with_its_parents_settings_ends_with_its_parents_bits(tmp_path: Path, parent: RunFolder) -> None:
    config = config_of(tmp_path, "child")
    fork(config, parent.uri_of(checkpoint_name(LENGTH)))
    original = Path(parent.path) / checkpoint_name(LENGTH) / "train_state.pt"
    assert (tmp_path / "child" / checkpoint_name(LENGTH) / "train_state.pt").read_bytes() == original.read_bytes()
    train(config)
    train(config_of(tmp_path, "parent"))
    assert_same(state_at(parent, 3 * LENGTH), state_at(RunFolder.of(config), 3 * LENGTH))


@pytest.mark.thorough
def test_parents_of_parents_are_known_and_told(tmp_path: Path, parent: RunFolder) -> None:
    fork(config_of(tmp_path, "child", "optim.lr=0.7"), parent.uri_of(checkpoint_name(LENGTH)))
    child, _ = train(config_of(tmp_path, "child", "optim.lr=0.7"), until=2 * LENGTH)
    config = config_of(tmp_path, "grandchild", "optim.lr=0.6")
    fork(config, child.uri)
    grandchild = RunFolder.of(config)
    assert read_parents(grandchild) == [
        Parent("child", 2 * LENGTH, 2.0, child.uri),
        Parent("parent", LENGTH, 1.0, parent.uri),
    ]
    assert read_parents(child) == read_parents(grandchild)[1:]
    assert read_parents(parent) == []
    assert read_events(grandchild) == [f"forked from child at step {2 * LENGTH}"]
    assert list(losses(grandchild)) == list(range(1, 2 * LENGTH + 1))


@pytest.mark.thorough
@pytest.mark.parametrize("kill", ["write_parents", "claim_dataset", "upload"])
def test_a_fork_that_was_killed_is_done_again(
    tmp_path: Path, parent: RunFolder, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, "child", "optim.lr=0.7")

    class Killed(BaseException):
        """What no handler of errors takes."""

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(f"raysl.runs.fork.{kill}", die)
        with pytest.raises(Killed):
            fork(config, parent.uri)
    child = RunFolder.of(config)
    assert child.newest().name is None, "it has not begun"
    fork(config, parent.uri)
    assert_same(state_at(parent, 2 * LENGTH), state_at(child, 2 * LENGTH))
    assert read_events(child) == [f"forked from parent at step {2 * LENGTH}"], "noted once"


@pytest.mark.thorough
def test_a_fork_that_is_done_or_has_gone_on_stays_and_a_damaged_one_is_repaired(
    tmp_path: Path, parent: RunFolder
) -> None:
    config = config_of(tmp_path, "child", "optim.lr=0.7", "train.keep_checkpoints=1")
    begins = parent.uri_of(checkpoint_name(LENGTH))
    fork(config, begins)
    child, _ = train(config, until=2 * LENGTH)
    logged = child.read("metrics.jsonl")
    fork(config, begins)
    assert (child.newest().step, child.read("metrics.jsonl")) == (2 * LENGTH, logged)
    (Path(child.path) / checkpoint_name(2 * LENGTH) / "train_state.pt").write_bytes(b"half")
    fork(config, begins)
    assert child.newest().step == LENGTH
    assert list(losses(child)) == list(range(1, LENGTH + 1))


@pytest.mark.thorough
def test_a_run_that_is_another_one_is_refused(tmp_path: Path, parent: RunFolder) -> None:
    begun, _ = train(config_of(tmp_path, "begun"), until=LENGTH)
    with pytest.raises(ConfigError, match=f"the run in {begun.uri} has begun by itself; give this one another name="):
        fork(config_of(tmp_path, "begun"), parent.uri)
    config = config_of(tmp_path, "child", "optim.lr=0.7")
    fork(config, parent.uri_of(checkpoint_name(LENGTH)))
    with pytest.raises(ConfigError, match=r"was forked from parent at step 8 \(epoch 1\) in .*another name="):
        fork(config, parent.uri_of(checkpoint_name(2 * LENGTH)))
    with pytest.raises(ConfigError, match=r"cannot be forked from itself"):
        fork(config_of(tmp_path, "parent"), parent.uri)
    (Path(RunFolder.of(config).path) / checkpoint_name(LENGTH) / "meta.json").unlink()
    with pytest.raises(ConfigError, match=r"other settings .*\n  optim\.lr: 0\.7 -> 0\.5"):
        fork(config_of(tmp_path, "child", "optim.lr=0.5"), parent.uri_of(checkpoint_name(LENGTH)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["backbone.width=4"],
            r"does not fit .*\n  backbone\.\S+ is \[8, .*there and \[4, .* here\n(.*\n)+  and \d+ more",
        ),
        (["method.output_dim=8"], r"does not fit .*\n  projector\S+ is \[16, 32\] there and \[8, 32\] here"),
        (
            ["train.batch_size=16"],
            r"cannot go on from .*\n  train\.batch_size: 8 -> 16\nkeep its values, or begin",
        ),
        (["train.epochs=5"], r"\n  train\.epochs: 3 -> 5\n"),
        (["data.limit=72"], r"\n  training images: 64 -> 72\n  steps in an epoch: 8 -> 9\n"),
        (["optim=adamw"], r"\n  optim\.name: sgd -> adamw\n"),
        (["method=byol"], "is a checkpoint of the method 'simclr', not of 'byol'"),
        (["backbone.freeze=[stem]"], "does not fit these settings"),
    ],
)
def test_what_does_not_go_on_from_there_is_refused_before_anything_is_written(
    tmp_path: Path, parent: RunFolder, words: list[str], told: str
) -> None:
    config = config_of(tmp_path, "child", *words)
    with pytest.raises(ConfigError, match=told) as refused:
        fork(config, parent.uri)
    assert parent.uri in str(refused.value)
    assert not (tmp_path / "child").exists()


@pytest.mark.parametrize("where", ["parent", "parent/checkpoint_000000099", "nowhere"])
def test_a_parent_without_a_checkpoint_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "parent").mkdir()
    with pytest.raises(ConfigError, match=r"no checkpoint at .* to fork from; give "):
        fork(config_of(tmp_path, "child"), str(tmp_path / where))


@pytest.mark.thorough
def test_a_fork_from_and_to_a_bucket_is_the_same(
    tmp_path: Path, parent: RunFolder, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.storage.owner.OwnerTimes", partial(OwnerTimes, settle_s=0.0))
    bucket = f"faulty://{tmp_path}"
    config = config_of(f"{bucket}/bucket", "child", "optim.lr=0.7")
    fork(config, f"{bucket}/parent")
    child = RunFolder(str(tmp_path / "bucket" / "child"))
    assert_same(state_at(parent, 2 * LENGTH), state_at(child, 2 * LENGTH))
    assert [(found.run, found.path) for found in read_parents(child)] == [("parent", f"{bucket}/parent")]
    assert list(losses(child)) == list(range(1, 2 * LENGTH + 1))


@pytest.mark.thorough
def test_a_lineage_that_was_damaged_is_told_of(parent: RunFolder) -> None:
    parent.write("lineage.json", json.dumps([{"run": "x"}]).encode())
    with pytest.raises(ConfigError, match=r"lineage\.json is damaged"):
        read_parents(parent)
