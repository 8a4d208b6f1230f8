"""A run whose dataset has changed is refused with what changed, or goes on at the same epoch."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name, checkpoint_names
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.dataset_note import DatasetNote
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.runs.begin import claim_dataset
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState

SMALL = ["backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4"]
OLD = DatasetNote("aaaa", num_samples=100, num_classes=3, epoch_len=10)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    words = [*SMALL, "train.batch_size=10", "train.epochs=4", f"storage={tmp_path}", "name=one"]
    return load_config("quickstart", words)


@pytest.fixture
def folder(config: RunConfig) -> RunFolder:
    """Of a run that is at step 25: in its third epoch of 10 steps, with a checkpoint at the end of the second."""
    folder = RunFolder.of(config)
    folder.claim(config)
    claim_dataset(folder, config, OLD, folder.newest())
    state = TrainState.create(Setup.of(config, 100, 3))
    for step in (20, 25):
        state.step = step
        state.save(Path(folder.path) / checkpoint_name(step), {"loss": 1.0})
    lines = [{"step": step, "epoch": step / 10, "loss": 1.0} for step in range(1, 26)]
    folder.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    return folder


def accepting(config: RunConfig) -> RunConfig:
    return replace(config, data=replace(config.data, changed="accept"))


def test_the_same_dataset_goes_on(folder: RunFolder, config: RunConfig) -> None:
    assert claim_dataset(folder, config, OLD, folder.newest()) == folder.newest()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (DatasetNote("bbbb", 101, 3, 10), ["training images: 100 -> 101"]),
        (DatasetNote("bbbb", 200, 4, 20), ["images: 100 -> 200", "classes: 3 -> 4", "steps in an epoch: 10 -> 20"]),
        (DatasetNote("bbbb", 100, 3, 10), ["as many training images as before, but others"]),
    ],
)
def test_another_dataset_is_refused_with_what_changed(
    folder: RunFolder, config: RunConfig, now: DatasetNote, told: list[str]
) -> None:
    with pytest.raises(ConfigError, match=r"the dataset of the run 'one' has changed since step 25") as refused:
        claim_dataset(folder, config, now, folder.newest())
    assert all(text in str(refused.value) for text in told)
    assert "data.changed=accept" in str(refused.value)
    assert checkpoint_names(folder) == [checkpoint_name(20), checkpoint_name(25)]
    assert claim_dataset(folder, config, OLD, folder.newest()).step == 25, "a refusal changes nothing"


LABELLED = replace(OLD, content={"labels": "11", "sizes": "22"}, written="33")


@pytest.fixture
def labelled(folder: RunFolder, config: RunConfig) -> RunFolder:
    """The same, of a dataset whose labels and versions are known."""
    claim_dataset(folder, config, LABELLED, folder.newest())
    return folder


def test_other_labels_are_another_dataset_whose_samples_come_in_the_same_order(
    labelled: RunFolder, config: RunConfig
) -> None:
    now = replace(LABELLED, content={"labels": "12", "sizes": "22"})
    with pytest.raises(ConfigError, match="as many training images as before, but other labels\n"):
        claim_dataset(labelled, config, now, labelled.newest())
    assert claim_dataset(labelled, accepting(config), now, labelled.newest()).step == 25
    assert claim_dataset(labelled, config, now, labelled.newest()).step == 25, "from now on they are the run's own"


def test_files_that_were_copied_or_touched_are_told_of_and_the_run_goes_on(
    labelled: RunFolder, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    now = replace(LABELLED, written="34")
    for _ in range(2):
        assert claim_dataset(labelled, config, now, labelled.newest()).step == 25
    assert [line.partition(",")[0] for line in caplog.messages] == ["files of the training images were written again"]
    assert "were written again" in labelled.read("events.jsonl").decode()


def test_a_run_goes_on_and_learns_what_its_note_does_not_have(
    folder: RunFolder, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    partial = {name: value for name, value in asdict(OLD).items() if name not in ("content", "written")}
    folder.write("dataset.json", json.dumps(partial).encode())
    assert claim_dataset(folder, config, LABELLED, folder.newest()) == folder.newest()
    assert caplog.messages == []
    with pytest.raises(ConfigError, match="other labels and sizes"):
        claim_dataset(folder, config, replace(OLD, content={"labels": "1", "sizes": "2"}), folder.newest())
    assert claim_dataset(folder, config, replace(LABELLED, content={}), folder.newest()) == folder.newest()


@pytest.mark.thorough
@pytest.mark.parametrize(("num_samples", "step"), [(70, 14), (205, 40)])
def test_an_accepted_one_goes_on_at_the_beginning_of_the_same_epoch(
    folder: RunFolder, config: RunConfig, num_samples: int, step: int
) -> None:
    before = TrainState.create(Setup.of(config, 100, 3))
    before.load(Path(folder.path) / checkpoint_name(25))
    now = DatasetNote("bbbb", num_samples, 3, num_samples // 10)
    found = claim_dataset(folder, accepting(config), now, folder.newest())
    assert (found.name, found.step) == (checkpoint_name(step), step)
    assert checkpoint_names(folder) == [checkpoint_name(step)], "steps of the others mean something else"
    state = TrainState.create(Setup.of(config, num_samples, 3))
    state.load(Path(folder.path) / checkpoint_name(step))
    assert state.step == step
    weights = zip(state.method.parameters(), before.method.parameters(), strict=True)
    assert all((new == old).all() for new, old in weights)
    lines = [json.loads(line) for line in folder.read("metrics.jsonl").splitlines()]
    assert [line["epoch"] for line in lines] == [step / 10 for step in range(1, 21)], "what follows is counted anew"
    assert lines[-1]["step"] == step
    assert "goes on with a changed dataset" in folder.read("events.jsonl").decode()
    assert claim_dataset(folder, config, now, folder.newest()).step == step, "from now on it is the run's own"


def test_an_accepted_one_with_epochs_of_the_same_length_goes_on_at_the_same_step(
    folder: RunFolder, config: RunConfig
) -> None:
    found = claim_dataset(folder, accepting(config), DatasetNote("bbbb", 103, 3, 10), folder.newest())
    assert found.step == 25


def test_a_run_without_a_checkpoint_takes_any_dataset(config: RunConfig) -> None:
    folder = RunFolder.of(config)
    folder.claim(config)
    claim_dataset(folder, config, OLD, folder.newest())
    now = DatasetNote("bbbb", 200, 3, 20)
    assert claim_dataset(folder, config, now, folder.newest()).name is None
    assert json.loads(folder.read("dataset.json"))["fingerprint"] == "bbbb"
