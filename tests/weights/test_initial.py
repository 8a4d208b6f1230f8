"""`method.weights` takes files of others and published networks: they are converted once, into a run in the storage."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save as to_safetensors
from torchvision.models import resnet18

import raysl
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.weights import read_weights
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, StorageError
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.storage.addresses import absolute
from raysl.train.state import TrainState
from raysl.weights import initial
from tests.weights.networks import head, saved, shaken, small_vit
from tests.weights.published import empty_cache, empty_hub_cache, in_hub_cache, publish
from tests.weights.test_dino_v3 import eva

PRETRAINED = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "raysl")


def load(weights: str, recipe: str = "continue/dino_v2", *words: str) -> RunConfig:
    return raysl.load_config(recipe, ["data=photos", f"method.weights={weights}", *words])


def tensors_of(config: RunConfig) -> dict[str, torch.Tensor]:
    assert config.method.weights is not None
    return load_checkpoint(config.method.weights).backbone.state_dict()


def vit_tensors(**options: object) -> dict[str, torch.Tensor]:
    """The tensors of a small ViT without its classifier, as official files have them."""
    return {name: value for name, value in small_vit(**options).state_dict().items() if not name.startswith("head.")}


@pytest.mark.thorough
def test_a_file_of_dino_v3_by_timms_names_brings_its_network_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = eva()
    config = load(saved(net.state_dict(), tmp_path / "dinov3.pth"), "continue/dino_v3")
    assert isinstance(config.backbone, ViT.Config)
    shape = config.backbone
    assert (shape.width, shape.depth, shape.patch_size, shape.position) == (64, 3, 8, "rope")
    assert torch.equal(tensors_of(config)["blocks.1.mlp.fc1.weight"], net.state_dict()["blocks.1.mlp.fc1.weight"])
    assert f"from the layout of dino_v3 into {config.method.weights}: loaded 48 of 48 tensors; missing 0" in caplog.text
    assert Path(config.method.weights or "").parent == tmp_path / "runs"


@pytest.mark.thorough
def test_a_file_of_mae_leaves_its_decoder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = vit_tensors()
    content = {"model": {**tensors, "mask_token": torch.zeros(1, 1, 64), "decoder_embed.weight": torch.zeros(8, 64)}}
    config = load(saved(content, tmp_path / "mae.pth"), "continue/mae")
    assert torch.equal(tensors_of(config)["blocks.2.attn.qkv.weight"], tensors["blocks.2.attn.qkv.weight"])
    assert "from the layout of mae" in caplog.text


@pytest.mark.thorough
def test_a_file_of_dino_v2_leaves_its_mask_token_to_the_recipe(tmp_path: Path) -> None:
    tensors = vit_tensors(init_values=1.0)
    config = load(saved({**tensors, "mask_token": torch.zeros(1, 64)}, tmp_path / "dinov2.pth"))
    assert torch.equal(tensors_of(config)["blocks.0.ls1.gamma"], tensors["blocks.0.ls1.gamma"])


@pytest.mark.thorough
def test_heads_in_the_file_are_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(saved(small_vit().state_dict(), tmp_path / "timm.pth"))
    assert "unexpected 2 (head.weight, head.bias)" in caplog.text


@pytest.mark.thorough
def test_the_same_command_reads_the_run_of_the_first_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(vit_tensors(), tmp_path / "vit.pth")
    first = load(path)
    weights = Path(first.method.weights or "")
    written = [file.stat().st_mtime_ns for file in sorted(weights.rglob("*"))]
    caplog.clear()
    assert load(path) == first
    assert [file.stat().st_mtime_ns for file in sorted(weights.rglob("*"))] == written
    assert "it was converted before, into" in caplog.text


@pytest.mark.thorough
def test_the_run_lies_in_the_storage_also_where_that_names_another_setting(tmp_path: Path) -> None:
    path = saved(vit_tensors(), tmp_path / "vit.pth")
    config = load(path, "continue/dino_v2", f"storage={tmp_path}/${{method.name}}")
    assert Path(config.method.weights or "").parent == Path(config.storage) == tmp_path / "dino_v2"
    assert tensors_of(config)


@pytest.mark.thorough
def test_a_variable_that_is_not_set_is_refused_with_its_key(tmp_path: Path) -> None:
    path = saved(vit_tensors(), tmp_path / "vit.pth")
    with pytest.raises(ConfigError, match=r"^storage: '\$NOT_SET/x': the variable \$NOT_SET is not set; "):
        load(path, "continue/dino_v2", "storage=$NOT_SET/x")
    with pytest.raises(ConfigError, match=r"^method.weights: '\$NOT_SET/x.pth': the variable \$NOT_SET is not set; "):
        load("$NOT_SET/x.pth")


@pytest.mark.thorough
def test_another_file_of_that_name_gets_a_run_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "vit.pth"
    first = load(saved(vit_tensors(), path))
    assert load(saved(vit_tensors(depth=2), path)).method.weights != first.method.weights


@pytest.mark.thorough
def test_an_interrupted_conversion_is_done_again(tmp_path: Path) -> None:
    path = saved(vit_tensors(), tmp_path / "vit.pth")
    weights = Path(load(path).method.weights or "")
    (weights / "checkpoint_000000000" / "meta.json").unlink()
    assert tensors_of(load(path))


@pytest.mark.thorough
def test_weights_that_another_process_has_converted_meanwhile_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = saved(vit_tensors(), tmp_path / "vit.pth"), initial._read
    written: list[int] = []

    def read_slowly(weights: str, name: str) -> Any:
        loaded = read(weights, name)
        monkeypatch.setattr(initial, "_read", read)
        load(path)
        written.extend(file.stat().st_mtime_ns for file in sorted((tmp_path / "runs").rglob("*")))
        return loaded

    monkeypatch.setattr(initial, "_read", read_slowly)
    assert tensors_of(load(path))
    assert [file.stat().st_mtime_ns for file in sorted((tmp_path / "runs").rglob("*"))] == written


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["other", "cut"])
def test_a_folder_with_something_else_is_refused(damage: str, tmp_path: Path) -> None:
    path = saved(vit_tensors(), tmp_path / "vit.pth")
    weights = Path(load(path).method.weights or "")
    file = weights / "checkpoint_000000000" / "backbone.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        shutil.rmtree(weights)
        weights.mkdir()
        (weights / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"vit_\w{8}, which holds something else or is damaged; delete that folder"):
        load(path)


@pytest.mark.thorough
def test_a_run_of_raysl_and_a_name_that_comes_with_it_stay_as_they_are(tmp_path: Path) -> None:
    assert load("cifar10/simclr", "cifar10/simclr").method.weights == "cifar10/simclr"
    weights = load(saved(vit_tensors(), tmp_path / "vit.pth")).method.weights
    assert load(str(weights)).method.weights == weights
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(str(weights)).name]


@pytest.mark.thorough
def test_a_published_network_of_timm_comes_from_its_cache_and_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net = shaken(timm.create_model(PRETRAINED.partition(".")[0]))
    cache = empty_hub_cache(tmp_path, monkeypatch)
    in_hub_cache(cache, f"timm/{PRETRAINED}", to_safetensors(net.state_dict()))
    config = load(f"timm:{PRETRAINED}")
    assert config.method.weights == str(tmp_path / "runs" / f"timm_{PRETRAINED}")
    assert torch.equal(tensors_of(config)["blocks.11.norm2.bias"], net.state_dict()["blocks.11.norm2.bias"])
    checkpoint = load_checkpoint(config.method.weights)
    assert checkpoint.config.data.mean == (0.5, 0.5, 0.5)
    assert checkpoint.meta["weights"]["uri"].startswith(f"https://huggingface.co/timm/{PRETRAINED}/resolve/")
    assert "its images were normalised by data.mean=[0.5,0.5,0.5] data.std=[0.5,0.5,0.5]" in caplog.text
    shutil.rmtree(cache)
    assert load(f"timm:{PRETRAINED}") == config


@pytest.mark.thorough
def test_a_published_network_of_torchvision_is_converted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache(tmp_path, monkeypatch)
    net = shaken(resnet18())
    publish("resnet18", net.state_dict(), tmp_path, monkeypatch)
    tensors = tensors_of(load("torchvision:resnet18", "simclr"))
    assert torch.equal(tensors["layer4.1.conv2.weight"], net.state_dict()["layer4.1.conv2.weight"])


@pytest.mark.thorough
def test_a_network_that_raysl_does_not_have_is_named_for_the_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = timm.create_model("convnext_atto")
    in_hub_cache(empty_hub_cache(tmp_path, monkeypatch), "timm/convnext_atto.d2_in1k", to_safetensors(net.state_dict()))
    with pytest.raises(ConfigError, match=r"give backbone=timm backbone.model=convnext_atto backbone.pretrained=true$"):
        load("timm:convnext_atto", "simclr")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("none.pth", "nothing is at 'none.pth'; give a file of weights, .* timm:NAME"),
        ("text.pth", "is not a file of weights, or was cut off"),
        ("two.pth", "choose one: key=a or key=b.*`raysl convert two.pth --out runs/theirs` takes them as options"),
        ("timm:nobody", "method.weights=timm:nobody: timm has no .*model 'nobody'"),
        (f"timm:{PRETRAINED}_2", f"has no weights '{PRETRAINED.partition('.')[2]}_2'; it has"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_next_step(weights: str, message: str, tmp_path: Path) -> None:
    saved({"a": vit_tensors(), "b": vit_tensors(), **head()}, tmp_path / "two.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(ConfigError, match=message):
        load(weights)
    assert not (tmp_path / "runs").exists()


def test_without_a_network_the_message_names_the_file_to_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_hub_cache(tmp_path, monkeypatch)
    with pytest.raises(StorageError, match=r"cannot download .*; a file of these .* method.weights=FILE"):
        load(f"timm:{PRETRAINED}")


@pytest.mark.parametrize("weights", ["timm:resnet18", "torchvision:resnet18"])
def test_a_published_network_that_was_not_converted_is_refused_with_the_way_to_convert_it(weights: str) -> None:
    config = raysl.load_config("quickstart")
    message = f"method.weights: '{weights}' is a published network, which `raysl plan CONFIG method.weights={weights}` "
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config, [f"method.weights={weights}"])
    with pytest.raises(ConfigError, match=message):
        read_weights(replace(config, method=replace(config.method, weights=weights)))


@pytest.mark.thorough
def test_raysl_config_converts_nothing(tmp_path: Path) -> None:
    from raysl.cli.arguments import load_run

    path = saved(vit_tensors(), tmp_path / "vit.pth")
    words = ["continue/mae", "data=photos", f"method.weights={path}"]
    assert load_run(words, low_resource=False, command="config").method.weights == path
    assert load_run(["simclr", "data=photos", "method.weights=timm:nobody"], False, "config").method.weights
    assert not (tmp_path / "runs").exists()
    planned = load_run(words, low_resource=False, command="plan")
    assert replace(planned, storage=absolute(planned.storage)) == load(path, "continue/mae")


@pytest.mark.thorough
def test_a_new_run_begins_with_these_weights(tmp_path: Path) -> None:
    tensors = vit_tensors()
    words = ["method.views.size=32", "train.batch_size=8", "method.decoder_depth=1", "method.decoder_width=48"]
    words += ["method.decoder_heads=3", "data.image_size=32"]
    config = load(saved(tensors, tmp_path / "vit.pth"), "continue/mae", *words)
    backbone = TrainState.create(Setup.of(config, num_samples=80)).method.get_submodule("backbone")
    assert torch.equal(backbone.state_dict()["blocks.0.mlp.fc1.bias"], tensors["blocks.0.mlp.fc1.bias"])
