"""Weights go out as other libraries read them, and converted ones are a run that all else of raysl takes."""

import importlib.util
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import timm.models.vision_transformer  # for the commands that `usage` shows
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor

import raysl
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.checkpoint.weights import read_weights
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.train.prepare import prepare
from raysl.train.state import TrainState, untrained_backbone
from raysl.weights.convert import KINDS, convert, load_weights
from raysl.weights.exports import detectron2_name, to_timm, to_torchvision
from raysl.weights.fill import Loaded
from raysl.weights.layouts import Rules
from tests.console import Console
from tests.weights.networks import (
    behind,
    features,
    head,
    images,
    pooled,
    saved,
    shaken,
    small_resnet,
    small_vit,
    tv_resnet,
)

VIT_SETTINGS = ("backbone.heads=1",)


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of torchvision's ResNet-18, at its seed of 18."""
    return saved(tv_resnet(18).state_dict(), tmp_path_factory.mktemp("files") / "resnet18.pth")


@pytest.fixture
def narrow(tmp_path: Path) -> str:
    return saved({**small_resnet().state_dict(), **head("fc.")}, tmp_path / "narrow.pth")


def read_back(usage: str) -> Any:
    """What the line that is shown reads; `x.load_state_dict(...)` gives x, which is filled whole."""
    names = {"timm": timm, "torch": torch, "torchvision": torchvision, "images": images()}
    if ".load_state_dict(" not in usage:
        return eval(usage, names)
    made, _, rest = usage.partition(".load_state_dict(")
    net = eval(made, names)
    missing = net.load_state_dict(
        *eval(f"[{rest.removesuffix(')').replace(', strict=False', '')}]", names), strict=False
    )
    assert (set(missing.missing_keys) - {"fc.weight", "fc.bias"}, missing.unexpected_keys) == (set(), [])
    return net.eval()


@pytest.mark.thorough
def test_torchvision_and_timm_read_a_resnet_and_give_the_same_features(resnet18: str, tmp_path: Path) -> None:
    truth = features(tv_resnet(18), images(64))
    for kind in ("torchvision", "timm"):
        done = convert(resnet18, str(tmp_path / f"{kind}.pth"), to=kind)
        net = read_back(done.usage)
        found = features(net, images(64)) if kind == "torchvision" else pooled(net, images(64))
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-6)
    tensors = torch.load(tmp_path / "torchvision.pth", weights_only=True)
    assert set(tensors) == {name for name in tv_resnet(18).state_dict() if not name.startswith("fc.")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"), [("resnext50_32x4d", (50, 64, 32, 4)), ("wide_resnet50_2", (50, 64, 1, 128))]
)
def test_wide_and_grouped_networks_of_torchvision_make_the_round_trip(
    name: str, settings: tuple[int, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = shaken(torchvision.models.get_model(name))
    source = saved(net.state_dict(), tmp_path / "in.pth")
    loaded = load_weights(source)
    config: Any = loaded.config.backbone
    assert (config.depth, config.width, config.groups, config.width_per_group) == settings
    truth = features(net, images(64))
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images(64)), truth, rtol=0, atol=1e-6)
    for kind in ("torchvision", "timm"):
        done = convert(source, str(tmp_path / f"{kind}.pth"), to=kind)
        assert name in done.usage
        again = read_back(done.usage)
        found = features(again, images(64)) if kind == "torchvision" else pooled(again, images(64))
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-6)
    kept = {key: value for key, value in net.state_dict().items() if not key.startswith("fc.")}
    assert same(torch.load(tmp_path / "torchvision.pth", weights_only=True), kept)
    done = convert(source, str(tmp_path / "net.pkl"), to="detectron2")
    told = f"cfg.MODEL.RESNETS.NUM_GROUPS = {settings[2]}; cfg.MODEL.RESNETS.WIDTH_PER_GROUP = {settings[3]}"
    assert done.usage.endswith(told)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"groups": 4, "width_per_group": 16},
            "no ResNet-50 of backbone.groups=4 and backbone.width_per_group=16",
        ),
        ({"norm": "group"}, "no ResNet of backbone.norm=group, but of batch"),
        ({"last_stride": 1}, "no ResNet of backbone.last_stride=1, but of 2"),
        ({"sk_ratio": 0.5}, "no ResNet of backbone.sk_ratio=0.5, but of None"),
    ],
)
def test_shapes_of_a_resnet_that_others_lack_are_refused(fields: dict[str, Any], said: str) -> None:
    loaded = Loaded(ResNet.without_weights(ResNet.Config(**fields)), load_config("quickstart"), "here", "", None)
    for export in (to_torchvision, to_timm):
        with pytest.raises(ConfigError, match=re.escape(said)):
            export(loaded)


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [18, 50])
def test_detectron2_gets_its_own_names_and_every_array_once(depth: int, tmp_path: Path) -> None:
    net = tv_resnet(depth)
    source = saved(net.state_dict(), tmp_path / "resnet.pth")
    convert(source, str(tmp_path / "resnet.pkl"), to="detectron2")
    content = pickle.loads((tmp_path / "resnet.pkl").read_bytes())
    assert (content["__author__"], content["matching_heuristics"]) == ("raysl", True)
    model = content["model"]
    theirs = {name: value for name, value in net.state_dict().items() if "num_batches" not in name}
    assert len(model) == len(theirs) - 2, "all but the classifier"
    assert [
        name for name in model if not re.fullmatch(r"(stem|res[2-5]\.\d+)\.(conv[123]|shortcut)(\.norm)?\.\w+", name)
    ] == []
    for name, array in model.items():
        assert torch.equal(torch.from_numpy(array), theirs[torchvision_name(name)])


def torchvision_name(name: str) -> str:
    """Back from Detectron2's name."""
    name = re.sub(r"conv(\d)\.norm\.", r"bn\1.", name.removeprefix("stem."))
    name = name.replace("shortcut.norm.", "downsample.1.").replace("shortcut.", "downsample.0.")
    return re.sub(r"^res(\d)", lambda match: f"layer{int(match[1]) - 1}", name)


def test_names_of_detectron2_are_those_of_its_own_converter() -> None:
    pairs = {
        "conv1.weight": "stem.conv1.weight",
        "bn1.running_mean": "stem.conv1.norm.running_mean",
        "layer1.0.conv3.weight": "res2.0.conv3.weight",
        "layer4.2.bn2.bias": "res5.2.conv2.norm.bias",
        "layer3.0.downsample.0.weight": "res4.0.shortcut.weight",
        "layer3.0.downsample.1.running_var": "res4.0.shortcut.norm.running_var",
    }
    assert {name: detectron2_name(name) for name in pairs} == pairs


@pytest.mark.thorough
def test_vissl_gets_a_trunk_that_is_read_back_the_same(narrow: str, tmp_path: Path) -> None:
    done = convert(narrow, str(tmp_path / "trunk.torch"), to="vissl")
    assert "STATE_DICT_KEY_NAME=classy_state_dict" in done.usage
    model = torch.load(tmp_path / "trunk.torch", weights_only=True)["classy_state_dict"]["base_model"]["model"]
    assert "_feature_blocks.layer4.1.bn2.weight" in model["trunk"]
    again = load_weights(str(tmp_path / "trunk.torch"))
    assert again.facts["layout"] == "vissl"
    with torch.no_grad():
        assert torch.equal(again.backbone(images()), small_resnet()(images()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},
        {"qkv_bias": False, "global_pool": "avg", "fc_norm": False},
        {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU, "mlp_ratio": 5.5},
    ],
)
def test_timm_reads_a_vit_and_gives_the_same_features(options: dict[str, Any], tmp_path: Path) -> None:
    net = small_vit(**options)
    source = saved(net.state_dict(), tmp_path / "in.pth")
    output = "mean" if options.get("global_pool") == "avg" else "class"
    done = convert(source, str(tmp_path / "out.pth"), [*VIT_SETTINGS, f"backbone.output={output}"], to="timm")
    again = read_back(done.usage)
    torch.testing.assert_close(pooled(again, images()), pooled(net, images()), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_real_vit_of_timm_makes_the_round_trip_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = shaken(timm.create_model("vit_small_patch16_224", num_classes=0))
    source = saved(net.state_dict(), tmp_path / "vit.pth")
    done = convert(source, str(tmp_path / "again.pth"), to="timm")
    assert same(torch.load(tmp_path / "again.pth", weights_only=True), net.state_dict())
    torch.testing.assert_close(
        pooled(read_back(done.usage), images(224, 1)), pooled(net, images(224, 1)), rtol=0, atol=0
    )


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["resnet", "vit"])
def test_an_exported_program_gives_the_features_of_batches_of_any_size(family: str, tmp_path: Path) -> None:
    net = small_resnet(depth=10) if family == "resnet" else small_vit()
    source = saved(net.state_dict(), tmp_path / "in.pth")
    words = ["data.image_size=32"] if family == "resnet" else VIT_SETTINGS
    done = convert(source, str(tmp_path / "net.pt2"), words, to="export")
    program = torch.export.load(tmp_path / "net.pt2").module()
    with torch.no_grad():
        for num in (1, 5):
            truth = net(images(32, num)) if family == "resnet" else pooled(net, images(32, num))
            torch.testing.assert_close(program(images(32, num)), truth, rtol=0, atol=1e-5)
        assert read_back(done.usage).shape == truth[:2].shape


@pytest.mark.parametrize("family", ["resnet", "vit"])
def test_an_onnx_model_gives_the_features_of_batches_of_any_size(family: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    net = small_resnet(depth=10) if family == "resnet" else small_vit()
    source = saved(net.state_dict(), tmp_path / "in.pth")
    convert(
        source, str(tmp_path / "net.onnx"), ["data.image_size=32"] if family == "resnet" else VIT_SETTINGS, to="onnx"
    )
    model = reference.ReferenceEvaluator(str(tmp_path / "net.onnx"))
    assert (model.input_names, model.output_names) == (["images"], ["features"])
    for num in (1, 5):
        with torch.no_grad():
            truth = net(images(32, num)) if family == "resnet" else pooled(net, images(32, num))
        (found,) = model.run(None, {"images": images(32, num).numpy()})
        torch.testing.assert_close(torch.from_numpy(found), truth, rtol=0, atol=1e-5)


def test_onnx_without_its_packages_is_refused_with_how_to_get_them(
    narrow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if "onnx" in name else find(name, *rest))
    assert refusal(narrow, str(tmp_path / "net.onnx"), "onnx") == (
        "to=onnx needs onnx and onnxscript, not installed here: pip install onnx onnxscript"
    )
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.thorough
def test_safetensors_come_with_a_card_and_are_read_again(narrow: str, tmp_path: Path) -> None:
    out = tmp_path / "narrow-resnet"
    done = convert(narrow, str(out), ["data.mean=[0.5,0.5,0.5]"], to="safetensors")
    assert same(load_file(out / "model.safetensors"), dict(small_resnet().state_dict()))
    card = (out / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert "library_name: raysl\npipeline_tag: image-feature-extraction\n" in front
    assert "# narrow-resnet\n" in text
    assert "`narrow.pth`, in the layout of torchvision (plain names)" in text
    assert "| normalised by the mean | 0.5, 0.5, 0.5 |" in text
    assert "  depth: 18\n" in text
    again = load_weights(f"{out}/model.safetensors")
    assert same(again.backbone.state_dict(), dict(small_resnet().state_dict()))
    assert done.usage == f"raysl.convert('{out}/model.safetensors', 'runs/again')"


@pytest.mark.thorough
def test_a_checkpoint_of_raysl_goes_out_with_what_trained_it(tmp_path: Path) -> None:
    state = TrainState.create(Setup.of(load_config("quickstart", ["backbone.width=8"]), 256, 10))
    state.step = 7
    folder = tmp_path / "run" / checkpoint_name(7)
    state.save(folder, {})
    done = convert(str(folder.parent), str(tmp_path / "card"), to="safetensors")
    assert done.table is None
    assert "with the method simclr, for 7 steps" in (tmp_path / "card" / "README.md").read_text()
    assert same(load_file(tmp_path / "card" / "model.safetensors"), load_file(folder / "backbone.safetensors"))
    text = refusal(str(folder.parent), str(tmp_path / "out.pth"), "torchvision")
    assert text == (
        "torchvision has no ResNet of backbone.num_stages=3, but of 4; safetensors and export take any backbone"
    )
    assert "is a checkpoint of raysl already" in refusal(str(folder.parent), str(tmp_path / "again"))
    assert "cannot change" in refusal(str(folder), str(tmp_path / "x"), "timm", ["backbone.depth=18"])
    assert "leave out layout, part, key" in refusal(
        str(folder), str(tmp_path / "x"), "timm", rules=Rules(layout="moco")
    )


@pytest.fixture
def imported(narrow: str, tmp_path: Path) -> Path:
    """A folder of converted weights."""
    raysl.convert(narrow, str(tmp_path / "runs" / "narrow"), overrides=["data.image_size=32"])
    return tmp_path / "runs" / "narrow"


@pytest.mark.thorough
def test_converted_weights_are_a_run_that_load_backbone_takes(imported: Path) -> None:
    backbone = raysl.load_backbone(str(imported))
    assert not backbone.training
    with torch.no_grad():
        assert torch.equal(backbone(images()), small_resnet()(images()))
    meta = json.loads((imported / checkpoint_name(0) / "meta.json").read_text())
    assert (meta["method"], meta["step"]) == ("imported", 0)
    assert meta["weights"]["layout"] == "torchvision"
    assert list(meta["weights"]["sha256"]) == ["narrow.pth"]
    told = "Its weights are those of `narrow.pth`, in the layout of torchvision (plain names)."
    assert load_weights(str(imported)).summary == told
    untrained = untrained_backbone(load_checkpoint(str(imported)))
    assert not torch.equal(untrained.state_dict()["bn1.weight"], backbone.state_dict()["bn1.weight"])


@pytest.mark.thorough
def test_a_run_begins_with_converted_weights(imported: Path) -> None:
    words = ["backbone.depth=18", "backbone.width=8", "backbone.num_stages=4", "backbone.stem=imagenet"]
    config = load_config("quickstart", [*words, f"method.weights={imported}"])
    state = TrainState.create(Setup.of(config, 256, 10))
    assert same(state.method.export().state_dict(), dict(small_resnet().state_dict()))
    assert state.weights is not None
    assert state.weights["method"] == "imported"
    bare = load_config("quickstart", [f"method.weights={imported}"])
    assert bare.backbone == config.backbone
    with pytest.raises(ConfigError, match=r"set backbone\.depth=18"):
        TrainState.create(
            Setup.of(load_config("quickstart", [f"method.weights={imported}", "backbone.depth=10"]), 256, 10)
        )


@pytest.mark.thorough
def test_a_run_of_other_weights_gets_no_advice_that_they_do_not_fit(
    imported: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["backbone.stem=imagenet", "backbone.width=8", "backbone.depth=18", "backbone.num_stages=4"]
    prepare(load_config("digits/simclr", [*words, f"method.weights={imported}", "name=again"]))
    assert "backbone.stem=cifar" not in caplog.text
    words += ["backbone.zero_init_residual=true", "backbone.depth=10"]
    hint = read_weights(load_config("digits/simclr", [*words, f"method.weights={imported}"])).hint
    assert hint == "backbone.depth=18"


@pytest.mark.thorough
def test_imported_weights_are_not_trained_in_place(imported: Path) -> None:
    config = load_config(str(imported / checkpoint_name(0) / "run.yaml"), [])
    with pytest.raises(
        ConfigError, match=r"trains nothing; give a method, such as method=simclr, and these weights by"
    ):
        prepare(config)


@pytest.mark.slow
def test_benchmarks_measure_converted_weights(imported: Path) -> None:
    report = raysl.benchmark(str(imported), ["knn"], ["data=digits", "data.limit=40"])
    assert "knn/k20/top1" in report.metrics
    kept = json.loads(next(imported.rglob("knn.json")).read_text())
    assert (kept["image"]["mean"], kept["image"]["image_size"]) == ([0.485, 0.456, 0.406], 32)
    assert Path(report.path).is_relative_to(imported), "results lie with the weights"


def refusal(source: str, out: str, to: str = "raysl", words: Any = (), rules: Rules | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        convert(source, out, words, rules, to)
    return str(refused.value)


@pytest.mark.thorough
def test_networks_that_a_library_lacks_are_refused_with_what_it_has(narrow: str, tmp_path: Path) -> None:
    vit = saved(small_vit().state_dict(), tmp_path / "vit.pth")
    out = str(tmp_path / "out")
    for kind in ("torchvision", "timm", "detectron2"):
        library = "Detectron2" if kind == "detectron2" else kind
        assert f"{library} has no ResNet of backbone.width=8, but of 64; safetensors and export" in refusal(
            narrow, out, kind
        )
    assert refusal(vit, out, "torchvision", VIT_SETTINGS).startswith("torchvision takes a ResNet here, not a ViT; ")
    both = [*VIT_SETTINGS, "backbone.output=class_mean"]
    assert "timm's ViT has no backbone.output=class_mean; give backbone.output=class" in refusal(vit, out, "timm", both)
    for library, position in (("timm", "relative"), ("vissl", "rope")):
        words = [*VIT_SETTINGS, f"backbone.position={position}"]
        text = refusal(vit, out, library, words, Rules(strict=False))
        assert f"ViT has no backbone.position={position}; safetensors and" in text
    for name in ("causal", "qk_norm"):
        words = [*VIT_SETTINGS, f"backbone.{name}=true", "backbone.output=mean"]
        assert f"timm's ViT has no backbone.{name}=true; safetensors and" in refusal(vit, out, "timm", words)
    assert refusal(vit, out, "tim") == f"to='tim': did you mean 'timm'? known: {', '.join(KINDS)}"
    assert "is not a setting of the backbone or its images" in refusal(vit, out, words=["optim.lr=1"])
    assert not Path(out).exists()


def test_vissl_gets_no_vit_with_registers_and_conversion_downloads_nothing(narrow: str, tmp_path: Path) -> None:
    vit = saved(small_vit(reg_tokens=4, no_embed_class=True).state_dict(), tmp_path / "vit.pth")
    text = refusal(vit, str(tmp_path / "out.torch"), "vissl", VIT_SETTINGS)
    assert text.startswith("VISSL has no ViT with registers, and this has backbone.num_registers=4; timm has one")
    words = ["backbone=timm", "backbone.model=test_convnext", "backbone.pretrained=true"]
    text = refusal(narrow, str(tmp_path / "run"), words=words)
    assert text.startswith(f"backbone.pretrained=True: the weights are those of {narrow}; leave it out")


@pytest.mark.thorough
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_network_of_a_library_goes_back_to_it(library: str, tmp_path: Path) -> None:
    if library == "timm":
        theirs, model, side = shaken(timm.create_model("test_vit", img_size=96, num_classes=0)), "test_vit", 96
    else:
        theirs, model, side = shaken(torchvision.models.shufflenet_v2_x0_5()), "shufflenet_v2_x0_5", 64
    words = [f"backbone={library}", f"backbone.model={model}"]
    words += ["backbone.image_size=96"] if library == "timm" else []
    source = saved(theirs.state_dict(), tmp_path / "net.pth")
    net = read_back(convert(source, str(tmp_path / "out.pth"), words, to=library).usage)
    if library == "torchvision":
        theirs.fc = net.fc = torch.nn.Identity()
    with torch.no_grad():
        assert torch.equal(net(images(side)), theirs(images(side)))
    other = "torchvision" if library == "timm" else "timm"
    assert f"{other} takes a ResNet here, not a " in refusal(source, str(tmp_path / "x.pth"), other, words)


@pytest.mark.thorough
def test_a_result_shows_itself_in_few_words(narrow: str, tmp_path: Path) -> None:
    done = convert(narrow, str(tmp_path / "run"))
    assert repr(done.table) == (
        "Table(loaded 120 of 120 tensors; missing 0; unexpected 4 (fc.0.weight, fc.0.bias, fc.2.weight, and 1 more))"
    )
    assert repr(done.table) in repr(done)


@pytest.mark.thorough
def test_nothing_is_written_over(narrow: str, imported: Path, tmp_path: Path) -> None:
    assert refusal(narrow, str(imported)) == (
        f"{imported} is in use, it holds {checkpoint_name(0)}; give an empty folder, or a new one"
    )
    assert refusal(narrow, narrow, "vissl") == f"{narrow} exists; delete it, or give another file"


@pytest.mark.thorough
def test_an_export_that_was_cut_off_is_completed_by_the_same_call_alone(narrow: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(narrow, str(out), to="safetensors")
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "README.md").unlink()
    convert(narrow, str(out), to="safetensors")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    (out / "model.safetensors").write_bytes(b"another")
    assert refusal(narrow, str(out), "safetensors").startswith(f"{out} is in use, it holds model.safetensors; ")
    assert (out / "model.safetensors").read_bytes() == b"another"
    (out / "model.safetensors").unlink()
    (out / "notes.txt").write_text("mine")
    assert refusal(narrow, str(out), "safetensors").startswith(f"{out} is in use, it holds notes.txt; ")


@pytest.mark.thorough
def test_the_command_says_what_became_of_each_tensor(console: Console, tmp_path: Path) -> None:
    tree = {
        "state_dict": {**behind("module.encoder_q.", small_resnet().state_dict()), "module.queue": torch.zeros(4, 8)}
    }
    tree["state_dict"] |= behind("module.encoder_q.fc.", {"weight": torch.zeros(4, 64)})
    source, out = saved(tree, tmp_path / "moco.pth.tar"), tmp_path / "runs" / "moco"
    code, output, errors = console("convert", source, "--out", str(out), "data.image_size=64")
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "read        Its weights are those of `moco.pth.tar`, in the layout of moco ([state_dict] module.encoder_q.*).",
        "loaded      120 of 120 tensors",
        "missing     0",
        "unexpected  1 (fc.weight)",
        "outside     1 (with another prefix)",
        f"weights     {out}",
        f"use         raysl.load_backbone('{out}/{checkpoint_name(0)}')",
    ]
    assert load_checkpoint(str(out)).config.data.image_size == 64
    code, _, errors = console("convert", source)
    assert (code, errors) == (2, "error: --out is missing; give a folder, or for most other libraries a file\n")
    words = ("--layout", "moco", "--part", "student", "--skip", "layer4", "--no-strict", "--to", "safetensors")
    code, output, _ = console("convert", source, "--out", str(tmp_path / "hub"), *words)
    assert code == 0
    assert "skipped     30 (layer4.0.conv1.weight" in output
    code, _, errors = console("convert", source, "--out", str(tmp_path / "other"), "backbone.depth=34")
    assert code == 2
    assert "backbone.depth=34 does not fit the tensors, which have backbone.depth=18" in errors


@pytest.mark.thorough
def test_weights_go_to_and_come_from_remote_storage(narrow: str, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(narrow, "/raysl_convert/in.pth")
    try:
        convert("memory://raysl_convert/in.pth", "memory://raysl_convert/run")
        convert("memory://raysl_convert/in.pth", "memory://raysl_convert/out.torch", to="vissl")
        assert same(raysl.load_backbone("memory://raysl_convert/run").state_dict(), dict(small_resnet().state_dict()))
        again = load_weights("memory://raysl_convert/out.torch")
        assert same(again.backbone.state_dict(), dict(small_resnet().state_dict()))
    finally:
        memory.rm("/raysl_convert", recursive=True)


class Mine(Backbone):
    """A backbone that no other library has."""

    Config = ViT.Config

    def __init__(self, config: ViT.Config) -> None:
        super().__init__(config)
        self.feature_dim = 3
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        """The scaled mean of each channel."""
        return images.mean(dim=(2, 3)) * self.scale

    def stages(self, images: Tensor, names: Any) -> dict[str, Tensor]:
        """None."""
        return {}


@pytest.mark.thorough
def test_any_backbone_goes_out_as_safetensors_and_as_a_program(tmp_path: Path) -> None:
    words = ["backbone.name=tests.weights.test_convert:Mine"]
    state = TrainState.create(Setup.of(load_config("quickstart", words), 256, 10))
    folder = tmp_path / "run" / checkpoint_name(1)
    state.save(folder, {})
    trusting = Rules(trust_code=True)
    assert "is code that is not raysl's" in refusal(str(folder), str(tmp_path / "a"), "safetensors")
    convert(str(folder), str(tmp_path / "a"), rules=trusting, to="safetensors")
    assert list(load_file(tmp_path / "a" / "model.safetensors")) == ["scale"]
    convert(str(folder), str(tmp_path / "a.pt2"), rules=trusting, to="export")
    program = torch.export.load(tmp_path / "a.pt2").module()
    torch.testing.assert_close(program(images(16, 3)), images(16, 3).mean(dim=(2, 3)))
    assert "VISSL has no Mine" in refusal(str(folder), str(tmp_path / "v.torch"), "vissl", rules=trusting)


@pytest.mark.thorough
def test_the_order_of_arguments_is_that_of_load_weights(narrow: str, tmp_path: Path) -> None:
    words = ["data.mean=[0.5,0.5,0.5]"]
    loaded = load_weights(narrow, words, Rules())
    by_place = convert(narrow, str(tmp_path / "place"), words, Rules(), "safetensors")
    by_name = convert(narrow, str(tmp_path / "name"), to="safetensors", overrides=words)
    assert loaded.config.data.mean == (0.5, 0.5, 0.5)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("place", "name")]
    assert files[0] == files[1]
    assert (by_place.summary, by_place.table) == (by_name.summary, by_name.table)
