"""The networks of torchvision as backbones: what they compute, how large they are, and what is refused."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torchvision import models

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import BackboneInfo
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.nn.drop_path import DropPath, keyed_draws
from raysl.train import LocalReporter, fit
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.tiers import each

NAMES = models.list_models(module=models)
THOROUGH, SLOW = pytest.mark.thorough, pytest.mark.slow
ONE_A_FAMILY = {
    "alexnet": "classifier",
    "convnext_tiny": "classifier.2",
    "densenet121": "classifier",
    "efficientnet_b0": "classifier",
    "googlenet": "fc",
    "maxvit_t": "classifier.3",
    "mnasnet0_5": "classifier",
    "mobilenet_v2": "classifier",
    "mobilenet_v3_small": "classifier",
    "regnet_x_400mf": "fc",
    "regnet_y_400mf": "fc",
    "resnet18": "fc",
    "shufflenet_v2_x0_5": "fc",
    "swin_t": "head",
    "swin_v2_t": "head",
    "vit_b_32": "heads",
}
"""What of torchvision's network follows the features."""


def made(model: str, **fields: object) -> TorchvisionModel:
    torch.manual_seed(0)
    return TorchvisionModel(TorchvisionModel.Config(model=model, **fields))


def theirs(model: str, **fields: int) -> nn.Module:
    if model == "googlenet":
        return models.get_model(model, aux_logits=False, init_weights=True)
    return models.get_model(model, **fields)


def sides(model: str) -> dict[str, int]:
    """The side of images of a network for which it has to be told."""
    return {"image_size": 64} if model == "vit_b_32" else {}


def side_of(model: str) -> int:
    return 224 if model == "maxvit_t" else 64


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest) -> TorchvisionModel:
    """The network of a name, which is made once for the tests of it that stand next to each other."""
    return made(request.param, **sides(request.param))


@pytest.mark.thorough
@pytest.mark.parametrize("network", each(ONE_A_FAMILY, now=("mobilenet_v3_small",)), indirect=True)
def test_features_are_those_of_torchvision_less_its_classifier(network: TorchvisionModel) -> None:
    model = network.config.model
    reference = theirs(model, **sides(model))
    reference.set_submodule(ONE_A_FAMILY[model], nn.Identity())
    if model == "maxvit_t":
        reference.classifier = reference.classifier[:3]
    missing, unexpected = network.network.load_state_dict(reference.state_dict(), strict=False)
    assert (missing, unexpected) == ([], [])
    images = torch.randn(1, 3, side_of(model), side_of(model), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = network.eval()(images)
        expected = reference.eval()(images)
    assert features.shape == (1, network.feature_dim)
    assert torch.equal(features, expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "network",
    each([*sorted({*ONE_A_FAMILY} - {"maxvit_t"}), "squeezenet1_1"], now=("mobilenet_v3_small",)),
    indirect=True,
)
def test_all_weights_get_a_gradient_and_stages_are_as_wide_as_said(network: TorchvisionModel) -> None:
    network.train().zero_grad()
    side = side_of(network.config.model)
    images = torch.randn(2, 3, side, side)
    names = list(network.stage_widths)
    found = network.stages(images, names[::-1])
    assert list(found) == names[::-1]
    assert {name: out.shape[1] for name, out in found.items()} == network.stage_widths
    assert [out.ndim for out in found.values()] == [2, *[4] * (len(names) - 1)]
    found["features"].square().mean().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=THOROUGH if name in ONE_A_FAMILY else SLOW) for name in NAMES],
)
def test_each_network_is_as_large_as_published(model: str) -> None:
    network = TorchvisionModel.without_weights(TorchvisionModel.Config(model=model))
    published = {weights.meta["num_params"] for weights in models.get_model_weights(model)}
    num_classifier = (network.feature_dim + 1) * 1000
    if not model.startswith("regnet"):  # of which torchvision makes none on the meta device
        kept = {name.removeprefix("network.") for name, _ in network.named_parameters()}
        with torch.device("meta"):
            whole = theirs(model)
        num_classifier = sum(p.numel() for name, p in whole.named_parameters() if name not in kept)
    num_ours = sum(parameter.numel() for parameter in network.parameters())
    assert num_classifier > 0
    assert num_ours + num_classifier in published
    assert all(parameter.is_meta for parameter in network.parameters())


@pytest.mark.thorough
def test_stages_go_by_resolution_and_stop_at_the_deepest_one() -> None:
    network = made("convnext_tiny").eval()
    ran: list[int] = []
    network.network.features[5].register_forward_hook(lambda *_: ran.append(5))
    images = torch.randn(1, 3, 64, 64)
    early = network.stages(images, ["stage2", "stage1"])
    assert not ran
    assert {name: tuple(out.shape) for name, out in early.items()} == {
        "stage2": (1, 192, 8, 8),
        "stage1": (1, 96, 16, 16),
    }
    late = network.stages(images, ["stage2", "features"])
    assert torch.equal(late["stage2"], early["stage2"])
    assert torch.equal(late["features"], network(images))
    assert not network._forward_hooks
    assert network.stages(images, []) == {}


@pytest.mark.thorough
def test_a_stage_is_kept_as_it_was_before_the_network_writes_over_it() -> None:
    network = made("densenet121").eval()
    images = torch.randn(1, 3, 32, 32)
    alone, with_rest = (network.stages(images, names)["stage5"] for names in (["stage5"], ["stage5", "features"]))
    assert torch.equal(alone, with_rest)
    assert alone.min() < 0


@pytest.mark.thorough
def test_facts_are_those_of_the_network() -> None:
    widths = {"stage1": 96, "stage2": 192, "stage3": 384, "stage4": 768, "features": 768}
    assert TorchvisionModel.info(TorchvisionModel.Config(model="swin_t")) == BackboneInfo(
        768, None, widths, num_layers=3
    )
    assert made("swin_t").stage_widths == widths


@pytest.mark.thorough
def test_weights_and_random_numbers_are_torchvisions() -> None:
    network = made("mobilenet_v3_small")
    after = torch.rand(1)
    torch.manual_seed(0)
    reference = models.mobilenet_v3_small()
    assert torch.equal(after, torch.rand(1))
    state = reference.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in network.network.state_dict().items())


@pytest.mark.thorough
def test_blocks_are_left_out_by_sample_at_the_rate_asked_for() -> None:
    own, asked = made("convnext_tiny"), made("convnext_tiny", drop_path=0.5)
    rates = [[m.rate for m in network.modules() if isinstance(m, DropPath)] for network in (own, asked)]
    assert rates[0] == pytest.approx([0.1 * number / 17 for number in range(18)])
    assert rates[1] == pytest.approx([0.5 * number / 17 for number in range(18)])
    assert not any(isinstance(m, torchvision.ops.StochasticDepth) for m in asked.modules())
    assert len({m.slot for m in asked.modules() if isinstance(m, DropPath)}) == 18
    images = torch.randn(4, 3, 32, 32)

    def features(rows: list[int]) -> torch.Tensor:
        index = torch.tensor(rows)
        batch = Batch({}, index, index, index, {}, seed=0, epoch=0)
        with keyed_draws(batch):
            return asked.train()(images[rows])

    torch.testing.assert_close(features([0, 1, 2, 3])[2:], features([2, 3]), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_transformers_take_images_of_another_size_when_they_are_told() -> None:
    network = made("vit_b_32", image_size=64).eval()
    assert network(torch.zeros(1, 3, 64, 64)).shape == (1, 768)
    assert network.stages(torch.zeros(1, 3, 64, 64), ["block2"])["block2"].shape == (1, 768, 2, 2)
    with pytest.raises(ValueError, match=r"32x32 pixels do not fit vit_b_32; 64x64 do, .* backbone.image_size=32"):
        network(torch.zeros(1, 3, 32, 32))


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["convnext_tiny", "swin_t", "vit_b_32", "resnet18"])
def test_no_decay_names_tokens_positions_and_scales(model: str) -> None:
    last = {name.rpartition(".")[2] for name in made(model).no_decay()}
    expected = {
        "convnext_tiny": {"layer_scale"},
        "swin_t": {"relative_position_bias_table"},
        "vit_b_32": {"class_token", "pos_embedding"},
        "resnet18": set(),
    }
    assert last == expected[model]


@pytest.mark.thorough
def test_a_copy_is_a_network_of_its_own() -> None:
    network = made("regnet_y_400mf").eval()
    teacher = convert_sync_batch_norm(copy.deepcopy(network))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(images), teacher(images))
    nn.init.zeros_(next(teacher.parameters()))
    assert not torch.equal(network(images), teacher(images))
    assert np.isfinite(network.stages(images, ["stage2"])["stage2"].detach().numpy()).all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "convnet_tiny"}, "no classification model 'convnet_tiny'; did you mean 'convnext_tiny'"),
        ({"model": "maskrcnn"}, "it has alexnet, .* wide_resnet50_2"),
        ({"model": "resnet18", "image_size": 32}, "resnet18 takes any, leave it out"),
        ({"model": "resnet18", "drop_path": 0.1}, "resnet18 has no stochastic depth"),
        ({"model": "vit_b_32", "image_size": 40}, "image_size 40 does not fit vit_b_32 .* try 32"),
        ({"model": "maxvit_t", "image_size": 100}, "image_size 100 does not fit maxvit_t .* try 224"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_does(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TorchvisionModel.info(TorchvisionModel.Config(**fields))


@pytest.mark.thorough
def test_tensors_without_the_version_of_the_network_are_loaded() -> None:
    network, other = made("mnasnet0_5"), made("mnasnet0_5")
    with torch.no_grad():
        next(network.parameters()).fill_(0.5)
    other.load_state_dict(dict(network.state_dict()))  # as safetensors give them
    assert torch.equal(next(other.parameters()), next(network.parameters()))


@pytest.mark.thorough
def test_an_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no stage 'res5' in resnet18; its stages: stage1, .*, stage5, features"):
        made("resnet18").stages(torch.zeros(1, 3, 32, 32), ["res5"])


@pytest.mark.thorough
def test_images_that_are_too_small_are_refused_before_there_are_weights() -> None:
    config = TorchvisionModel.Config(model="convnext_tiny")
    with pytest.raises(ConfigError, match="16x16 pixels do not fit convnext_tiny; 32x32 do"):
        TorchvisionModel.check_side(config, 16)
    TorchvisionModel.check_side(config, 32)
    with pytest.raises(ValueError, match="16x16 pixels do not fit convnext_tiny; 32x32 do"):
        made("convnext_tiny")(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("mobilenet_v3_small", marks=THOROUGH),
        pytest.param("regnet_y_400mf", marks=SLOW),
    ],
)
def test_a_run_on_digits_learns_with_it(model: str) -> None:
    chosen = ["backbone=torchvision", f"backbone.model={model}", "method.hidden_dim=32", "method.output_dim=16"]
    short = ["data.limit=64", "train.batch_size=32", "train.epochs=1", "data.lanes=4", "train.device=cpu"]
    run = prepare(load_config("quickstart", [*chosen, *short]))
    state = TrainState.create(run.setup, classes=run.classes)
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    before = {name: value.clone() for name, value in state.method.backbone.named_parameters()}
    metrics = fit(state, state.method, run.setup.plan, batches, reporter=LocalReporter())
    assert np.isfinite(metrics["loss"])
    assert all(not torch.equal(before[name], value) for name, value in state.method.backbone.named_parameters())


@pytest.mark.thorough
def test_a_run_of_images_that_are_too_small_is_refused_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="16x16 pixels do not fit convnext_tiny; 32x32 do"):
        prepare(load_config("quickstart", ["backbone=torchvision", "data.limit=128", "train.batch_size=64"]))
