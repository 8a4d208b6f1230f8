"""Files in the layouts of other libraries and of official code are recognised, and their backbones taken whole."""

import argparse
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.nn.backbones.positions import sincos_positions
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from raysl.weights.convert import load_weights
from raysl.weights.layouts import LAYOUTS, Rules
from raysl.weights.search import ARCHITECTURES
from tests.weights.networks import (
    behind,
    features,
    head,
    images,
    optimizer_of,
    pooled,
    saved,
    shaken,
    small_resnet,
    small_vit,
    tv_resnet,
)

MINE, OTHER = 3, 4  # seeds of the network that is looked for, and of another one in the same file


def resnet(seed: int = MINE) -> dict[str, Tensor]:
    return small_resnet(seed).state_dict()


def vit(seed: int = MINE, classifier: bool = False) -> dict[str, Tensor]:
    return {n: v for n, v in small_vit(seed).state_dict().items() if classifier or not n.startswith("head.")}


def run(state: Any, **more: Any) -> dict[str, Any]:
    """What training code keeps beside the weights."""
    return {"epoch": 200, "arch": "resnet50", "optimizer": optimizer_of(small_resnet()), **state, **more}


def vissl(trunk: dict[str, Tensor]) -> dict[str, Any]:
    model = {"trunk": trunk, "heads": head("0.clf.")}
    return {
        "phase_idx": 3,
        "iteration": 10,
        "loss": {"info_criterion.pos_mask": torch.zeros(2)},
        "classy_state_dict": {"base_model": {"model": model, "meta": {}}, "optimizer": {"optim": {}}, "amp": None},
        "type": "consolidated",
    }


MASK = {"masked_embed": torch.full((1, 64), 0.5)}
OPTIONS = argparse.Namespace(arch="vit_small", lr=0.0005)

RESNETS: dict[str, Callable[[], Any]] = {
    "vissl": lambda: vissl(behind("_feature_blocks.", resnet())),
    "vissl ": lambda: vissl(behind("base_model._feature_blocks.", resnet())),
    "vissl  ": lambda: vissl(behind("_feature_blocks.", resnet()))["classy_state_dict"],
    "raysl": lambda: {"method": {**behind("backbone.", resnet()), **head("projector.")}, "optimizer": {}, "step": 7},
    "moco": lambda: run(
        {
            "state_dict": {
                **behind("module.encoder_q.", resnet()),
                **head("module.encoder_q.fc."),
                **behind("module.encoder_k.", resnet(OTHER)),
                **head("module.encoder_k.fc."),
                "module.queue": torch.randn(8, 16),
                "module.queue_ptr": torch.zeros(1, dtype=torch.long),
            }
        }
    ),
    "moco_v3": lambda: run(
        {
            "state_dict": {
                **behind("module.base_encoder.", resnet()),
                **head("module.base_encoder.fc."),
                **behind("module.momentum_encoder.", resnet(OTHER)),
                **head("module.predictor."),
            },
            "scaler": {},
        }
    ),
    "simsiam": lambda: run(
        {
            "state_dict": {
                **behind("module.encoder.", resnet()),
                **head("module.encoder.fc."),
                **head("module.predictor."),
            }
        }
    ),
    "dino": lambda: run(
        {
            "student": behind("module.backbone.", resnet(OTHER)),
            "teacher": {**behind("backbone.", resnet()), **head("head.mlp.")},
            "dino_loss": {"center": torch.zeros(1, 4)},
            "args": OPTIONS,
        }
    ),
    "barlow_twins": lambda: run(
        {
            "model": {
                **behind("module.backbone.", resnet()),
                **head("module.projector."),
                "module.bn.running_mean": torch.zeros(4),
            }
        }
    ),
    "solo_learn": lambda: run(
        {
            "state_dict": {
                **behind("backbone.", resnet()),
                **behind("momentum_backbone.", resnet(OTHER)),
                **head("projector."),
            },
            "pytorch-lightning_version": "1.9",
        }
    ),
    "swav": lambda: {
        **behind("module.", resnet()),
        **head("module.projection_head."),
        "module.prototypes.weight": torch.randn(8, 4),
    },
    "swav ": lambda: run({"state_dict": {**behind("module.", resnet()), **head("module.projection_head.")}}),
    "torchvision": lambda: {**resnet(), **head("fc.")},
    "torchvision ": lambda: resnet(),  # Barlow Twins' resnet50.pth
}
VITS: dict[str, Callable[[], Any]] = {
    "vissl": lambda: vissl(vit()),
    "moco_v3": lambda: run(
        {
            "state_dict": {
                **behind("module.base_encoder.", vit()),
                **head("module.base_encoder.head."),
                **behind("module.momentum_encoder.", vit(OTHER)),
            }
        }
    ),
    "dino": lambda: run(
        {
            "student": {**behind("module.backbone.", vit(OTHER)), **head("module.head.")},
            "teacher": {**behind("backbone.", vit()), **head("head.")},
            "args": OPTIONS,
        }
    ),
    "ibot": lambda: run(
        {
            "student": behind("module.backbone.", {**vit(OTHER), **MASK}),
            "teacher": {**behind("backbone.", vit()), **head("head.")},
            "args": OPTIONS,
        }
    ),
    "ibot ": lambda: {"state_dict": {**vit(), **MASK}},
    "mae": lambda: {
        "model": {
            **vit(),
            "mask_token": torch.zeros(1, 1, 64),
            "decoder_pos_embed": torch.zeros(1, 17, 64),
            **behind("decoder_embed.", {"weight": torch.zeros(64, 64)}),
            **behind("decoder_blocks.0.norm1.", {"weight": torch.zeros(64)}),
        },
        "optimizer": {},
        "args": OPTIONS,
    },
    "timm": lambda: vit(classifier=True),
    "timm ": lambda: {"model": vit(classifier=True)},  # DeiT
}
VIT_SETTINGS = ("backbone.heads=1",)  # which no tensor shows; MoCo v3 would have 12


@pytest.mark.parametrize("is_old", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("layout", RESNETS)
def test_a_resnet_is_taken_whole_from_each_layout(layout: str, is_old: bool, tmp_path: Path) -> None:
    path = saved(RESNETS[layout](), tmp_path / "file.pth.tar", is_old)
    loaded = load_weights(path)
    assert loaded.facts["layout"] == layout.strip()
    assert loaded.table is not None
    assert (list(loaded.table.missing), len(loaded.table.loaded)) == ([], len(resnet()))
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images()), small_resnet(MINE)(images()))
    named = load_weights(path, rules=Rules(layout=layout.strip()))
    assert torch.equal(named.backbone.state_dict()["conv1.weight"], loaded.backbone.state_dict()["conv1.weight"])


@pytest.mark.parametrize("layout", VITS)
def test_a_vit_is_taken_whole_from_each_layout(layout: str, tmp_path: Path) -> None:
    loaded = load_weights(saved(VITS[layout](), tmp_path / "file.pth"), VIT_SETTINGS)
    assert loaded.facts["layout"] == layout.strip()
    config: Any = loaded.config.backbone
    assert (config.width, config.depth, config.patch_size, config.image_size) == (64, 3, 8, 32)
    assert loaded.config.data.image_size == 32
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(small_vit(MINE), images()), rtol=0, atol=1e-6)


def test_every_layout_is_tested() -> None:
    own_file = "dino_v3"
    assert {name.strip() for name in [*RESNETS, *VITS]} == set(LAYOUTS) - {own_file}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "part"), [("moco", "teacher"), ("moco_v3", "teacher"), ("dino", "student"), ("solo_learn", "teacher")]
)
def test_the_other_network_is_taken_on_request(layout: str, part: str, tmp_path: Path) -> None:
    loaded = load_weights(saved(RESNETS[layout](), tmp_path / "file.pth"), rules=Rules(part=part))
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images()), small_resnet(OTHER)(images()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "teacher"), [("byol", "teacher.module.0."), ("moco", "teacher.module.0."), ("dino", "teacher.module.")]
)
def test_student_and_teacher_of_a_run_of_raysl_are_in_its_state(method: str, teacher: str, tmp_path: Path) -> None:
    state = TrainState.create(Setup.of(load_config(f"digits/{method}"), 1024, 10))
    with torch.no_grad():
        for parameter in state.method.backbone.parameters():
            parameter.add_(1)
    state.save(tmp_path, {})
    tensors = state.method.state_dict()
    for part, prefix in {"student": "backbone.", "teacher": teacher}.items():
        loaded = load_weights(str(tmp_path / "train_state.pt"), rules=Rules(part=part))
        for name, value in loaded.backbone.state_dict().items():
            assert torch.equal(value, tensors[f"{prefix}{name}"])


@pytest.mark.parametrize(
    ("layout", "resize"), [("ibot", "dino"), ("ibot ", "dino"), ("dino", "dino"), ("mae", "antialias")]
)
def test_positions_are_resized_as_in_the_code_of_the_paper(layout: str, resize: str, tmp_path: Path) -> None:
    loaded = load_weights(saved(VITS[layout](), tmp_path / "file.pth"), [*VIT_SETTINGS, "backbone.image_size=48"])
    config: Any = loaded.config.backbone
    assert config.position_resize == resize
    stored = vit()["pos_embed"]
    grid = stored[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    size: dict[str, Any] = {"scale_factor": 6.1 / 4} if resize == "dino" else {"size": (6, 6), "antialias": True}
    expected = F.interpolate(grid, mode="bicubic", **size).flatten(2).transpose(1, 2)
    assert torch.equal(loaded.backbone.state_dict()["pos_embed"], torch.cat([stored[:, :1], expected], dim=1))


@pytest.mark.thorough
def test_the_teacher_of_vissl_lies_in_its_loss(tmp_path: Path) -> None:
    tree = vissl(vit(OTHER))
    tree["loss"] = {**behind("momentum_teacher.module.trunk.", vit()), "center": torch.zeros(4)}
    loaded = load_weights(saved(tree, tmp_path / "model.torch"), VIT_SETTINGS, Rules(part="teacher"))
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(small_vit(MINE), images()), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_keys_and_a_prefix_lead_to_any_backbone(tmp_path: Path) -> None:
    tree = {"nets": {"online": {**behind("net.trunk.", resnet()), **head("net.head.")}}, "lr": 0.1}
    path = saved(tree, tmp_path / "mine.pt")
    loaded = load_weights(path, rules=Rules(key="nets.online", prefix="net.trunk."))
    assert (loaded.facts["layout"], loaded.facts["place"]) == ("torchvision", "[nets.online] net.trunk.*")
    assert loaded.table is not None
    assert loaded.table.num_outside == 4
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images()), small_resnet(MINE)(images()))
    flat = saved({"state_dict": behind("trunk.", resnet())}, tmp_path / "flat.pt")
    assert load_weights(flat, rules=Rules(prefix="trunk.")).facts["place"] == "[state_dict] trunk.*"


@pytest.mark.thorough
def test_real_networks_of_torchvision_give_the_same_features(tmp_path: Path) -> None:
    for depth in (18, 50):
        net = tv_resnet(depth)
        loaded = load_weights(saved(net.state_dict(), tmp_path / f"{depth}.pth"))
        config: Any = loaded.config.backbone
        assert (config.depth, config.width, config.stem, config.num_stages) == (depth, 64, "imagenet", 4)
        assert loaded.table is not None
        assert set(loaded.table.unexpected) == {"fc.weight", "fc.bias"}
        with torch.no_grad():
            torch.testing.assert_close(loaded.backbone(images(64)), features(net, images(64)), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_real_vit_of_timm_gives_the_same_features_as_a_safetensors_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = shaken(timm.create_model("vit_small_patch16_224"))
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    loaded = load_weights(str(tmp_path / "model.safetensors"))
    config: Any = loaded.config.backbone
    assert (config.size, config.heads, config.patch_size, config.image_size) == ("small", None, 16, 224)
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images(224)), pooled(net, images(224)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},
        {"qkv_bias": False},
        {"init_values": 0.1},
    ],
)
def test_registers_layer_scale_and_missing_biases_are_seen_in_the_tensors(
    options: dict[str, Any], tmp_path: Path
) -> None:
    net = small_vit(**options)
    loaded = load_weights(saved(net.state_dict(), tmp_path / "vit.pth"), VIT_SETTINGS)
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-6)


def test_the_names_of_dinov2s_own_files_are_known(tmp_path: Path) -> None:
    net = small_vit(reg_tokens=4, no_embed_class=True, init_values=1e-5)
    tensors = dict(net.state_dict())
    tensors["register_tokens"] = tensors.pop("reg_token")
    first = torch.full((1, 1, 64), 0.25)
    tensors["pos_embed"] = torch.cat([first, tensors["pos_embed"]], dim=1)
    tensors["cls_token"] = tensors["cls_token"] - first
    tensors["mask_token"] = torch.ones(1, 64)
    loaded = load_weights(saved(tensors, tmp_path / "dinov2_vits14_reg4_pretrain.pth"), VIT_SETTINGS)
    assert torch.equal(loaded.backbone.state_dict()["mask_token"], torch.ones(1, 1, 64))
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-6)


def test_a_vit_of_the_first_vissl_has_other_names(tmp_path: Path) -> None:
    tensors = vit()
    tensors |= {"class_token": tensors.pop("cls_token"), "pos_embedding": tensors.pop("pos_embed")}
    tensors["patch_masking.masked_embed"] = torch.full((1, 64), 0.5)
    loaded = load_weights(saved(vissl(tensors), tmp_path / "vit.torch"), VIT_SETTINGS)
    assert torch.equal(loaded.backbone.state_dict()["mask_token"], torch.full((1, 1, 64), 0.5))
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(small_vit(MINE), images()), rtol=0, atol=1e-6)


def test_factors_of_layer_scale_that_lie_in_the_block_are_found(tmp_path: Path) -> None:
    net = small_vit(init_values=0.1)
    tensors = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): value for name, value in net.state_dict().items()}
    assert "blocks.0.gamma_1" in tensors
    loaded = load_weights(saved({"state_dict": tensors}, tmp_path / "ibot.pth"), VIT_SETTINGS)
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_vit_s_of_moco_v3_has_12_heads_and_others_those_of_their_size(tmp_path: Path) -> None:
    net = small_vit(embed_dim=384, depth=12, num_heads=12)
    tensors = {name: value for name, value in net.state_dict().items() if not name.startswith("head")}
    path = saved({"state_dict": behind("module.base_encoder.", tensors)}, tmp_path / "vit-s-300ep.pth.tar")
    loaded = load_weights(path)
    config: Any = loaded.config.backbone
    assert (config.size, config.heads, config.position) == ("small", 12, "sincos")
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-5)
    plain: Any = load_weights(saved(tensors, tmp_path / "plain.pth")).config.backbone
    assert (plain.size, plain.heads) == ("small", None)


def test_positions_are_interpolated_to_the_images_that_are_asked_for(tmp_path: Path) -> None:
    net = small_vit(dynamic_img_size=True)
    path = saved(net.state_dict(), tmp_path / "vit.pth")
    loaded = load_weights(path, [*VIT_SETTINGS, "backbone.image_size=48"])
    assert loaded.table is not None
    assert list(loaded.table.resized) == ["pos_embed from 4x4 to 6x6 patches"]
    assert loaded.config.data.image_size == 48
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images(48)), pooled(net, images(48)), rtol=0, atol=1e-5)


def test_a_network_for_small_images_is_seen_by_its_stem(tmp_path: Path) -> None:
    net = small_resnet()
    tensors = {**net.state_dict(), "conv1.weight": torch.randn(8, 3, 3, 3)}
    loaded = load_weights(saved({"state_dict": behind("backbone.", tensors)}, tmp_path / "solo.ckpt"))
    assert (loaded.config.backbone.stem, loaded.config.data.image_size) == ("cifar", 32)  # type: ignore[attr-defined]


def refusal(path: str, overrides: tuple[str, ...] = (), rules: Rules | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_weights(path, overrides, rules)
    return str(refused.value)


@pytest.mark.thorough
def test_tensors_that_are_missing_or_of_other_shapes_are_refused_with_the_first_few(tmp_path: Path) -> None:
    tensors = resnet()
    for name in ("layer1.0.bn1.weight", "layer2.0.bn1.weight", "layer3.0.bn1.weight", "layer4.0.bn1.weight"):
        del tensors[name]
    tensors["layer1.1.bn1.bias"] = torch.zeros(9)
    path = saved(tensors, tmp_path / "file.pth")
    text = refusal(path)
    assert text.startswith(
        f"{path} does not fill the backbone: layer1.1.bn1.bias is [9] there and [8] here; layer1.0.bn1.weight is not "
        "there; layer2.0.bn1.weight is not there, and 2 more such tensors; "
    )
    assert text.endswith(
        "strict=False, on the command line --no-strict, takes what fits and leaves the rest at its seed"
    )
    table = load_weights(path, rules=Rules(strict=False)).table
    assert table is not None
    assert (len(table.loaded), len(table.missing), len(table.mismatched)) == (len(resnet()) - 5, 4, 1)
    assert "missing     4 (layer1.0.bn1.weight, layer2.0.bn1.weight, layer3.0.bn1.weight, and 1 more)" in table.text()


@pytest.mark.thorough
def test_counters_of_batches_may_be_missing_as_in_files_of_2018(tmp_path: Path) -> None:
    tensors = {name: value for name, value in resnet().items() if "num_batches" not in name}
    table = load_weights(saved(tensors, tmp_path / "file.pth")).table
    assert table is not None
    assert table.problems == []


@pytest.mark.thorough
def test_another_depth_than_that_of_the_file_is_refused_with_the_right_one(tmp_path: Path) -> None:
    path = saved(small_resnet(depth=34).state_dict(), tmp_path / "file.pth")
    text = refusal(path, ("backbone.depth=18",))
    assert "layer1.2.conv1.weight is there and not here" in text, (
        "what is too much in the backbone changes its features"
    )
    assert "backbone.depth=18 does not fit the tensors, which have backbone.depth=34: leave that setting out" in text
    assert "backbone.depth=12" in refusal(saved(vit(), tmp_path / "vit.pth"), ("backbone.depth=12", *VIT_SETTINGS))


@pytest.mark.thorough
def test_skipped_tensors_stay_at_their_seed_and_are_no_error(tmp_path: Path) -> None:
    path = saved(resnet(), tmp_path / "file.pth")
    loaded = load_weights(path, rules=Rules(skip=("layer4.1.",)))
    assert loaded.table is not None
    assert len(loaded.table.skipped) == 12
    mine, theirs = loaded.backbone.state_dict(), resnet()
    assert not torch.equal(mine["layer4.1.conv1.weight"], theirs["layer4.1.conv1.weight"])
    assert torch.equal(mine["layer4.0.conv1.weight"], theirs["layer4.0.conv1.weight"])


@pytest.mark.thorough
def test_unknown_layouts_are_refused_with_what_the_file_holds(tmp_path: Path) -> None:
    path = saved({"net": {"features.0.weight": torch.zeros(1)}, "epoch": 3}, tmp_path / "vgg.pth")
    text = refusal(path)
    assert text.startswith(
        f"{path} has no known layout; it holds net (1 tensors, the first features.0.weight). {ARCHITECTURES}. Say "
    )
    deep = saved({"nets": {"online": {"a.weight": torch.zeros(1)}, "target": {}}}, tmp_path / "deep.pth")
    assert "; it holds nets.online (1 tensors, the first a.weight). " in refusal(deep)
    assert "moco" in text
    moco = saved(RESNETS["moco"](), tmp_path / "moco.pth")
    assert refusal(moco, rules=Rules(layout="dino")).startswith(
        f"{moco} has no ResNet or ViT with layout='dino', whose tensors are at [teacher] "
    )
    assert refusal(moco, rules=Rules(layout="dino")).endswith(". Leave out or change layout")
    assert "did you mean 'moco'?" in refusal(moco, rules=Rules(layout="moko"))
    assert (
        refusal(moco, rules=Rules(layout="simsiam", part="teacher")) == "layout=simsiam has no teacher; leave part out"
    )
    assert "is neither student nor teacher" in refusal(moco, rules=Rules(part="query"))
    assert "has no ResNet or ViT with key='model'; " in refusal(moco, rules=Rules(key="model"))
    assert "has no ResNet or ViT with prefix='net.'; " in refusal(moco, rules=Rules(prefix="net."))
    assert "has no ResNet or ViT with prefix='module.'; " in refusal(moco, rules=Rules(prefix="module."))


def test_names_that_point_to_a_network_are_refused_with_its_setting(tmp_path: Path) -> None:
    vit = {"class_token": torch.zeros(1, 1, 1024), "conv_proj.weight": torch.zeros(1024, 3, 16, 16)}
    text = refusal(saved(vit, tmp_path / "vit.pth"))
    assert "conv_proj.weight is of torchvision's ViTs: give backbone=torchvision backbone.model=vit_l_16. Say " in text
    selective = ResNet(ResNet.Config(depth=14, width=8, sk_ratio=0.5)).state_dict()
    assert "is of a ResNet with selective kernels or other blocks" in refusal(saved(selective, tmp_path / "sk.pth"))


@pytest.mark.thorough
def test_a_plain_vit_is_mae_only_with_its_decoder_or_its_fixed_positions(tmp_path: Path) -> None:
    fixed = {**vit(), "pos_embed": sincos_positions(4, 4, 64)}
    for tree, expected in (
        ({"model": vit()}, ("timm", "learned")),
        ({"state_dict": vit()}, ("timm", "learned")),
        ({"model": fixed}, ("mae", "sincos")),  # MAE's published encoders have no decoder
        ({"model": {**vit(), "mask_token": torch.zeros(1, 1, 64)}}, ("mae", "sincos")),
    ):
        loaded = load_weights(saved(tree, tmp_path / "file.pth"), VIT_SETTINGS)
        settings: Any = loaded.config.backbone
        assert (loaded.facts["layout"], settings.position) == expected
    named = load_weights(saved({"model": vit()}, tmp_path / "file.pth"), VIT_SETTINGS, Rules(layout="mae"))
    assert named.facts["layout"] == "mae"


@pytest.mark.thorough
def test_a_network_of_torchvision_from_ddp_is_not_of_swav(tmp_path: Path) -> None:
    for tree in (behind("module.", resnet()), {"state_dict": behind("module.", resnet())}):
        assert load_weights(saved(tree, tmp_path / "file.pth")).facts["layout"] == "torchvision"


@pytest.mark.thorough
def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    broken = {**resnet(), "bn1.weight": torch.full((8,), float("nan"))}
    path = saved(broken, tmp_path / "nan.pth")
    assert "does not fill the backbone: bn1.weight has values that are NaN or infinite; " in refusal(path)
    table = load_weights(path, rules=Rules(strict=False)).table
    assert table is not None
    assert "bn1.weight" not in table.loaded


@pytest.mark.thorough
def test_norms_without_statistics_are_refused_with_the_setting_to_give(tmp_path: Path) -> None:
    grouped = ResNet(ResNet.Config(depth=10, width=8, norm="group", norm_groups=4)).state_dict()
    path = saved(grouped, tmp_path / "group.pth")
    assert "; its norms have no running statistics: give backbone.norm=layer, or backbone.norm=group" in refusal(path)
    table = load_weights(path, ["backbone.norm=group", "backbone.norm_groups=4"]).table
    assert table is not None
    assert table.problems == []


@pytest.mark.thorough
def test_the_first_bytes_of_a_file_tell_its_format(tmp_path: Path) -> None:
    save_file({name: value.contiguous() for name, value in resnet().items()}, tmp_path / "pytorch_model.bin")
    assert load_weights(f"{tmp_path}/pytorch_model.bin").facts["layout"] == "torchvision"
    saved(resnet(), tmp_path / "x.safetensors")
    assert load_weights(f"{tmp_path}/x.safetensors").facts["layout"] == "torchvision"


@pytest.mark.thorough
def test_networks_that_raysl_does_not_build_are_refused_with_what_they_are(tmp_path: Path) -> None:
    narrow = {**resnet(), "layer1.0.conv1.weight": torch.zeros(5, 8, 3, 3)}
    text = refusal(saved(narrow, tmp_path / "narrow.pth"))
    assert "blocks have widths that raysl does not build: conv1.weight is [8, 3, 7, 7], layer1.0.conv1" in text
    selective = ResNet(ResNet.Config(depth=14, width=8, stem="cifar", sk_ratio=0.5)).state_dict()
    assert "is a ResNet with other blocks (selective kernels" in refusal(saved(selective, tmp_path / "sk.pth"))
    odd = {**resnet(), **{f"layer1.{block}.conv1.weight": torch.zeros(8, 8, 3, 3) for block in (2, 3)}}
    assert "is a ResNet with [4, 2, 2, 2] BasicBlock blocks in its stages; raysl builds 10: [1, 1, 1, 1]" in refusal(
        saved(odd, tmp_path / "odd.pth")
    )
    two = {**vit(), "pos_embed": torch.zeros(1, 18, 64), "dist_token": torch.zeros(1, 1, 64)}
    assert "has 18 position embeddings" in refusal(saved(two, tmp_path / "deit.pth"), VIT_SETTINGS)
    clip = {**vit(), "norm_pre.weight": torch.zeros(64)}
    assert "norm_pre.weight is there and not here" in refusal(saved(clip, tmp_path / "clip.pth"), VIT_SETTINGS)


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.pth").write_text("epoch 1: 0.5\n")
    text = refusal(str(tmp_path / "notes.pth"))
    assert "is not a file of weights, or was cut off" in text
    assert "(101)" not in text
    assert "pickle" in text
    (tmp_path / "pickle.pkl").write_bytes(pickle.dumps({"model": {"stem.conv1.weight": np.zeros(3)}}))
    text = refusal(str(tmp_path / "pickle.pkl"))
    assert "is not a file of weights" in text
    assert "weights_only" not in text, "no advice to run what is in it"
    (tmp_path / "empty.pth").write_bytes(b"")
    assert "is not a file of weights" in refusal(str(tmp_path / "empty.pth"))
    whole = Path(saved(resnet(), tmp_path / "file.pth")).read_bytes()
    (tmp_path / "half.pth").write_bytes(whole[: len(whole) // 2])
    assert "is not a file of weights" in refusal(str(tmp_path / "half.pth"))
    (tmp_path / "x.safetensors").write_bytes(whole[:100])
    assert "is not a file of weights" in refusal(str(tmp_path / "x.safetensors"))
    assert "holds a Tensor, not tensors by name" in refusal(saved(torch.zeros(3), tmp_path / "tensor.pth"))
    assert refusal(str(tmp_path / "gone.pth")).startswith(
        f"nothing is at '{tmp_path}/gone.pth'; give a file of weights, or a run or checkpoint of raysl"
    )
    assert "is a folder without a run or checkpoint of raysl; name one of its files, such as " in refusal(str(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("is_old", [False, True])
def test_code_in_a_file_is_run_only_for_those_who_trust_it(tmp_path: Path, is_old: bool) -> None:
    mark = tmp_path / "mark"
    path = saved({"state_dict": resnet(), "hook": Harmful(mark)}, tmp_path / "file.pth", is_old)
    text = refusal(path)
    assert text.startswith(f"refused {path}: beside tensors it holds posix.mkdir, which takes code to read; ")
    assert text.endswith("If you trust the file, say trust_code=True, on the command line --trust-code")
    assert not mark.exists()
    load_weights(path, rules=Rules(trust_code=True))
    assert mark.exists()
