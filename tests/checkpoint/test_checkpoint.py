import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from raysl.checkpoint.backbone import load_backbone, load_checkpoint
from raysl.checkpoint.checkpoint_folder import FORMAT, newest, seal
from raysl.checkpoint.tensors import load_tensors
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.state import TrainState, untrained_backbone

IMAGES = (64, 10)  # and classes
SETTINGS = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4"]


def state_of(*overrides: str) -> TrainState:
    return TrainState.create(Setup.of(load_config("quickstart", [*SETTINGS, *overrides]), *IMAGES))


def train(state: TrainState, until: int) -> TrainState:
    """A few updates on batches that depend on the step alone."""
    state.method.train()
    while state.step < until:
        views = torch.randn(8, 2, 3, 8, 8, generator=torch.Generator().manual_seed(state.step))
        batch = Batch({"global": views}, torch.arange(8), torch.zeros(8, dtype=torch.int64))
        state.optimizer.zero_grad()
        state.method(batch, Step(state.step, 10, 4)).loss.backward()
        state.optimizer.step()
        state.step += 1
    return state


def assert_same(a: TrainState, b: TrainState) -> None:
    assert a.step == b.step
    for (name, x), (_, y) in zip(a.method.state_dict().items(), b.method.state_dict().items(), strict=True):
        assert torch.equal(x, y), name
    assert str(a.optimizer.state_dict()) == str(b.optimizer.state_dict())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoint_000000003"
    state = train(state_of(), 3)
    state.callbacks = {"Probe": {"best": 0.5, "seen": torch.arange(3), "name": "x"}}
    state.save(folder, {"loss": 1.25})
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_the_step_after_a_restart_is_the_step_that_would_have_been(tmp_path: Path, optimizer: str) -> None:
    whole, first = (state_of(f"optim={optimizer}", "optim.lr=0.1") for _ in range(2))
    train(first, 3).save(tmp_path, {})
    second = state_of(f"optim={optimizer}", "optim.lr=0.1")
    second.load(tmp_path)
    assert_same(train(whole, 5), train(second, 5))


@pytest.mark.thorough
def test_what_callbacks_keep_comes_back(saved: Path) -> None:
    state = state_of()
    state.load(saved)
    assert state.step == 3
    assert state.callbacks["Probe"]["seen"].tolist() == [0, 1, 2]
    assert (state.callbacks["Probe"]["best"], state.callbacks["Probe"]["name"]) == (0.5, "x")


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_state_is_read_part_by_part_and_keeps_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    first, second = (state_of(f"optim={optimizer}", "optim.lr=0.1") for _ in range(2))
    first.callbacks = {"Probe": {"seen": torch.arange(3)}}
    train(first, 3).save(tmp_path, {})
    how: dict[str, Any] = {}
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: how.update(kwargs) or load(*args, **kwargs))
    second.load(tmp_path)
    assert (how["mmap"], how["map_location"]) == (True, "cpu")
    file = tmp_path / "train_state.pt"
    with file.open("r+b") as opened:  # the same file, in place
        opened.write(bytes(file.stat().st_size))
    assert_same(first, second)
    assert second.callbacks["Probe"]["seen"].tolist() == [0, 1, 2]


def test_first_weights_are_a_function_of_the_seed() -> None:
    assert_same(state_of(), state_of())
    with pytest.raises(AssertionError):
        assert_same(state_of(), state_of("seed=1"))


@pytest.mark.thorough
def test_the_backbone_of_a_checkpoint_is_the_trained_one(saved: Path) -> None:
    state = state_of()
    state.load(saved)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = state.method.export().eval()(images)
        backbone = load_backbone(str(saved))
        assert not backbone.training
        assert torch.equal(backbone(images), expected)
        untrained = untrained_backbone(load_checkpoint(str(saved)))
        assert torch.equal(untrained(images), state_of().method.export().eval()(images))
        assert not torch.equal(untrained(images), expected)


@pytest.mark.thorough
def test_a_run_stands_for_its_newest_whole_checkpoint(saved: Path) -> None:
    run = saved.parent
    train(state_of(), 4).save(run / "checkpoint_000000020", {})
    (run / "checkpoint_000000100").mkdir()
    assert newest(str(run)) == f"{run}/checkpoint_000000020"
    assert newest(f"{saved}/") == str(saved)
    assert load_checkpoint(str(run)).meta["step"] == 4
    with pytest.raises(ConfigError, match=r"no checkpoint at '.*/gone'; give the folder of a checkpoint"):
        newest(str(run / "gone"))


@pytest.mark.thorough
def test_a_checkpoint_behind_a_uri_is_read(saved: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in saved.iterdir():
        memory.pipe(f"/bucket/run/{saved.name}/{path.name}", path.read_bytes())
    try:
        loaded = load_checkpoint("memory://bucket/run")
        assert loaded.uri == f"memory://bucket/run/{saved.name}"
        images = torch.randn(1, 3, 16, 16)
        assert torch.equal(loaded.backbone(images), load_backbone(str(saved))(images))
    finally:
        memory.rm("/bucket", recursive=True)


def sealed(folder: Path) -> None:
    """Have `meta.json` vouch for the files as they are."""
    meta = json.loads((folder / "meta.json").read_text())
    seal(folder, {key: value for key, value in meta.items() if key not in ("files", "format")})


def edit_meta(folder: Path, **changes: Any) -> None:
    path = folder / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.thorough
@pytest.mark.parametrize("read", [lambda path: load_checkpoint(str(path)), lambda path: state_of().load(path)])
def test_another_format_is_refused_and_says_who_reads_it(saved: Path, read: Callable[[Path], Any]) -> None:
    edit_meta(saved, format=99, raysl="7.0")
    with pytest.raises(ConfigError, match=r"checkpoint format 99, this raysl reads format 1; open it with raysl 7\.0"):
        read(saved)
    (saved / "meta.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"checkpoint format None"):
        read(saved)
    (saved / "meta.json").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint at|is not a checkpoint"):
        read(saved)


@pytest.mark.thorough
def test_a_checkpoint_of_another_method_or_size_does_not_resume(saved: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)does not fit these settings: .*size mismatch"):
        state_of("method.hidden_dim=16").load(saved)
    edit_meta(saved, method="byol")
    with pytest.raises(
        ConfigError, match=r"is a checkpoint of the method 'byol', not of 'simclr'; give the run another"
    ):
        state_of().load(saved)


@pytest.mark.parametrize("name", ["run.yaml", "backbone.safetensors"])
def test_a_checkpoint_that_lacks_a_file_names_it(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(ConfigError, match=name.partition(".")[0]):
        load_checkpoint(str(saved))


@pytest.mark.thorough
def test_a_run_whose_newest_checkpoint_is_damaged_gives_the_one_before(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = saved.parent / "checkpoint_000000020"
    train(state_of(), 4).save(later, {})
    content = bytearray((later / "backbone.safetensors").read_bytes())
    content[-1] ^= 1
    (later / "backbone.safetensors").write_bytes(content)
    assert newest(str(saved.parent)) == str(saved)
    assert caplog.messages == [
        f"passed over checkpoint_000000020: {later}/backbone.safetensors is not what was written, its SHA-256 "
        "differs; copy it again, or use an older checkpoint"
    ]
    with pytest.raises(ConfigError, match=r"backbone\.safetensors is not what was written"):
        load_backbone(str(later))


def test_a_flipped_bit_in_the_state_is_not_resumed_from(saved: Path) -> None:
    content = bytearray((saved / "train_state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (saved / "train_state.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"train_state\.pt is not what was written, its SHA-256 differs"):
        state_of().load(saved)


FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.checkpoint.test_checkpoint import state_of
state = state_of()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    state.save(Path(sys.argv[1]), {})
except OSError as error:
    print("refused:", error.strerror)
"""


@pytest.mark.cluster
def test_a_disk_that_takes_no_more_is_an_error_of_the_system_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    most = 20_000  # bytes of a file
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "half", str(most)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "refused: File too large\n", done.stderr
    assert not (tmp_path / "half" / "meta.json").exists()


# safety


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.thorough
def test_a_hostile_pickle_is_refused_and_runs_nothing(saved: Path, tmp_path: Path) -> None:
    mark, file = tmp_path / "sprung", saved / "train_state.pt"
    torch.save({"method": Trap(mark), "step": 1}, file)
    with pytest.raises(ConfigError, match=r"refused .*train_state\.pt: it holds more than tensors and primitives"):
        load_tensors(file)
    sealed(saved)
    with pytest.raises(ConfigError, match="refused"):
        state_of().load(saved)
    file.write_bytes(pickle.dumps({"method": Trap(mark)}))
    with pytest.raises(ConfigError, match="refused"):
        load_tensors(file)
    assert not mark.exists()
    with file.open("rb") as opened:
        pickle.load(opened)
    assert mark.exists(), "the trap itself works"


def test_a_damaged_file_is_an_error_of_its_own(saved: Path) -> None:
    file = saved / "train_state.pt"
    content = file.read_bytes()
    for damaged in (b"", b"text", content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"train_state\.pt"):
            load_tensors(file)


def test_a_checkpoint_holds_tensors_and_primitives_only(saved: Path) -> None:
    with zipfile.ZipFile(saved / "train_state.pt") as archive:
        assert any(name.endswith("data.pkl") for name in archive.namelist())
    loaded = torch.load(saved / "train_state.pt", weights_only=True)
    assert set(loaded) == {"method", "optimizer", "step", "callbacks"}
    assert {path.name for path in saved.iterdir()} == {
        "train_state.pt",
        "backbone.safetensors",
        "run.yaml",
        "meta.json",
    }
    meta = json.loads((saved / "meta.json").read_text())
    assert (meta["format"], meta["method"], meta["step"], meta["metrics"]) == (
        FORMAT,
        "simclr",
        3,
        {"loss": 1.25},
    )


@pytest.mark.thorough
def test_a_state_without_its_parts_is_refused(saved: Path) -> None:
    torch.save({"step": 3}, saved / "train_state.pt")
    sealed(saved)
    with pytest.raises(ConfigError, match=r"does not fit these settings"):
        state_of().load(saved)
