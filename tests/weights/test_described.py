"""An exported `model.safetensors` is read again as the network that it was."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import raysl
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from raysl.weights.convert import convert, load_weights
from raysl.weights.layouts import Rules
from tests.weights.networks import images, saved, shaken, small_resnet, small_vit

CONVNEXT = ["backbone=timm", "backbone.model=test_convnext"]


def trained(words: list[str], folder: Path) -> Any:
    """The backbone in a checkpoint of raysl with these settings."""
    state = TrainState.create(Setup.of(load_config("quickstart", words), 256, 10))
    shaken(state.method.export())
    state.save(folder / checkpoint_name(1), {})
    return raysl.load_backbone(str(folder), trust_code=True)


def read_again(path: Path, monkeypatch: pytest.MonkeyPatch, usage: str) -> Any:
    """The backbone that the line of an export reads, as a checkpoint."""
    monkeypatch.chdir(path)
    done = eval(usage, {"raysl": raysl})
    return load_checkpoint(done.path, trust_code=True)


@pytest.mark.thorough
def test_heads_output_and_normalisation_of_a_vit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(small_vit().state_dict(), tmp_path / "vit.pth")
    words = ["backbone.heads=4", "backbone.output=mean", "data.mean=[0.5,0.5,0.5]", "data.std=[0.25,0.5,0.5]"]
    first = load_weights(source, words)
    done = convert(source, str(tmp_path / "st"), words, to="safetensors")
    again = read_again(tmp_path, monkeypatch, done.usage)
    assert (again.config.backbone, again.config.data) == (first.config.backbone, first.config.data)
    with torch.no_grad():
        assert torch.equal(again.backbone(images()), first.backbone(images()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["backbone.norm=group", "backbone.norm_groups=4", "backbone.width=8"],
        ["backbone.depth=14", "backbone.width=8", "backbone.sk_ratio=0.5"],
        ["backbone.name=tests.weights.test_convert:Mine"],
    ],
)
def test_any_backbone_is_read_again_by_the_line_that_is_shown(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = trained(words, tmp_path / "run")
    done = convert(str(tmp_path / "run"), str(tmp_path / "st"), rules=Rules(trust_code=True), to="safetensors")
    again = read_again(tmp_path, monkeypatch, done.usage)
    with torch.no_grad():
        assert torch.equal(again.backbone(images()), net(images()))
    card = (tmp_path / "st" / "README.md").read_text()
    assert ("rules=raysl.weights.layouts.Rules(trust_code=True)" in card) == ("Mine" in words[0])


@pytest.mark.thorough
def test_a_network_of_timm_is_read_again_and_settings_can_be_changed(tmp_path: Path) -> None:
    source = saved(shaken(timm.create_model("test_convnext")).state_dict(), tmp_path / "net.pth")
    first = load_weights(source, CONVNEXT)
    convert(source, str(tmp_path / "st"), CONVNEXT, to="safetensors")
    again = load_weights(f"{tmp_path}/st/model.safetensors", ["data.mean=[0.5,0.5,0.5]"])
    assert again.summary == "Its weights are those of `model.safetensors`, in the layout of raysl (plain names)."
    assert again.config.data.mean == (0.5, 0.5, 0.5)
    assert again.config.backbone == first.config.backbone
    with torch.no_grad():
        assert torch.equal(again.backbone(images(64)), first.backbone(images(64)))


@pytest.mark.thorough
def test_other_images_interpolate_the_positions(tmp_path: Path) -> None:
    convert(
        saved(small_vit().state_dict(), tmp_path / "v.pth"), f"{tmp_path}/st", ["backbone.heads=4"], to="safetensors"
    )
    again = load_weights(f"{tmp_path}/st/model.safetensors", ["backbone.image_size=48"])
    settings: Any = again.config.backbone
    assert (settings.heads, settings.image_size, again.config.data.image_size) == (4, 48, 48)
    assert again.table is not None
    assert again.table.resized == ["pos_embed from 4x4 to 6x6 patches"]


@pytest.mark.thorough
def test_equal_networks_give_equal_files_and_those_without_settings_are_read(tmp_path: Path) -> None:
    source = saved(small_resnet().state_dict(), tmp_path / "net.pth")
    files = set()
    for number in range(6):
        convert(source, f"{tmp_path}/{number}", to="safetensors")
        files.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(files) == 1
    tensors = {name: value.contiguous() for name, value in small_resnet().state_dict().items()}
    save_file(tensors, tmp_path / "old.safetensors", metadata={"format": "pt"})
    assert load_weights(f"{tmp_path}/old.safetensors").config.method.layout == "torchvision"  # type: ignore[attr-defined]


def test_code_and_damage_in_the_settings_of_a_file_are_refused(tmp_path: Path) -> None:
    tensors = {name: value.contiguous() for name, value in small_resnet().state_dict().items()}
    path = tmp_path / "x.safetensors"
    for text, message in {
        "backbone: {name: 'os.path:join'}\ndata: {}\n": "is code that is not raysl's",
        "[1, 2]\n": "has no settings of a backbone in its metadata 'raysl'; export it again",
    }.items():
        save_file(tensors, path, metadata={"raysl": text})
        with pytest.raises(ConfigError, match=message):
            load_weights(str(path))
