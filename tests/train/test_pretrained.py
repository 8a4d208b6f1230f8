"""A run that begins with published weights downloads them once, on its driver, and goes on from its checkpoints."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save as to_safetensors

from raysl.checkpoint.checkpoint_folder import checkpoint_name, checkpoint_names
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.nn.backbones.timm_models import TimmModel
from raysl.plan.setup import Setup
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.schedule import Step
from raysl.train.prepare import prepare
from raysl.train.state import TrainState, untrained_backbone
from tests.weights.networks import shaken
from tests.weights.published import COMMIT, TINY, digest_of, empty_hub_cache, in_hub_cache

WORDS = ("backbone=timm", f"backbone.model={TINY}", "backbone.pretrained=true", "benchmarks=[]")
NAME = f"{TINY}.r160_in1k"


def config_of(storage: Path, *words: str) -> RunConfig:
    small = [
        "method.hidden_dim=32",
        "method.output_dim=16",
        "data.limit=64",
        "train.batch_size=8",
        "method.views.size=32",
    ]
    return load_config("quickstart", [*WORDS, *small, f"storage={storage}", "name=new", *words])


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_hub_cache(tmp_path, monkeypatch)


@pytest.fixture
def theirs(hub_cache: Path) -> Any:
    """The published network."""
    torch.manual_seed(9)
    network = shaken(timm.create_model(TINY))
    in_hub_cache(hub_cache, f"timm/{NAME}", to_safetensors(network.state_dict()))
    return network


def started(config: RunConfig) -> tuple[RunFolder, int]:
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    return folder, begin(run, folder).step


def has(network: torch.nn.Module, theirs: Any) -> bool:
    wanted = theirs.state_dict()
    mine = network.state_dict()
    return all(torch.equal(value, wanted[name.removeprefix("network.")]) for name, value in mine.items())


@pytest.mark.thorough
def test_the_driver_stores_them_as_the_first_checkpoint_with_their_hash(
    tmp_path: Path,
    theirs: Any,
    hub_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "raysl"):
        folder, step = started(config_of(tmp_path))
    assert (checkpoint_names(folder), step) == ([checkpoint_name(0)], 0)
    (file,) = hub_cache.rglob("model.safetensors")
    origin = json.loads((Path(folder.path) / checkpoint_name(0) / "meta.json").read_text())["weights"]
    assert origin["sha256"] == {file.name: digest_of(file.read_bytes())}
    assert (origin["name"], origin["library"]) == (NAME, "timm")
    assert origin["revision"] == COMMIT
    assert origin["left_out"] == ["projector (begins at random)"]
    (event,) = [json.loads(line)["event"] for line in folder.read("events.jsonl").splitlines()]
    assert event.startswith(f"begins with the weights of {NAME} of timm (https://huggingface.co/timm/{NAME}/resolve/")
    assert digest_of(file.read_bytes()) in event
    assert "data.mean=[0.5,0.5,0.5] data.std=[0.5,0.5,0.5] are its own" in caplog.text


@pytest.mark.thorough
def test_workers_and_a_run_that_goes_on_download_nothing(
    tmp_path: Path,
    theirs: Any,
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(tmp_path)
    folder, _ = started(config)
    shutil.rmtree(hub_cache)
    monkeypatch.setattr(TimmModel, "published", None)  # a call would fail
    state = TrainState.create(Setup.of(config, 64, 10), is_new=False)  # as a worker makes it
    state.load(Path(folder.path) / checkpoint_name(0))
    assert has(state.method.export(), theirs)
    assert started(config)[1] == 0, "the driver of a second start"
    assert not has(TrainState.create(Setup.of(config, 64, 10), is_new=False).method.export(), theirs)


@pytest.mark.thorough
def test_weights_of_another_run_come_before_them(tmp_path: Path, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = started(config_of(tmp_path))
    monkeypatch.setattr(TimmModel, "published", None)
    config = config_of(tmp_path, f"method.weights={folder.path}", "name=second", "seed=4")
    state = TrainState.create(Setup.of(config, 64, 10))
    assert has(state.method.export(), theirs)


@pytest.mark.thorough
def test_a_run_interrupted_and_resumed_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, theirs: Any) -> None:
    setup = Setup.of(config_of(tmp_path), 64, 10)

    def train(state: TrainState, first: int, last: int) -> None:
        for index in range(first, last):
            torch.manual_seed(index)
            images = torch.randn(4, 3, 32, 32)
            state.method.train()
            state.method.export()(images).square().mean().backward()  # type: ignore[no-untyped-call]
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step = Step(index + 1, 10, 5).index

    whole = TrainState.create(setup)
    train(whole, 0, 4)
    half = TrainState.create(setup)
    train(half, 0, 2)
    half.save(tmp_path / "half", {})
    resumed = TrainState.create(setup, is_new=False)
    resumed.load(tmp_path / "half")
    train(resumed, 2, 4)
    mine, expected = resumed.method.state_dict(), whole.method.state_dict()
    assert resumed.step == 4
    assert all(torch.equal(value, mine[name]) for name, value in expected.items())
    assert resumed.weights == whole.weights


@pytest.mark.thorough
def test_an_untrained_rival_stays_random(tmp_path: Path, theirs: Any) -> None:
    from raysl.checkpoint.backbone import load_checkpoint

    folder, _ = started(config_of(tmp_path))
    checkpoint = load_checkpoint(folder.uri_of(checkpoint_name(0)))
    assert has(checkpoint.backbone, theirs)
    assert not has(untrained_backbone(checkpoint), theirs)
