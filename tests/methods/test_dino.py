import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.dino import DINO
from raysl.methods.method import StepOutput
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.transforms.papers import RECIPES

NUM_VIEWS = 4  # two large ones and two small ones
HEAD = (
    "method.head.num_prototypes=7",
    "method.head.hidden_dim=12",
    "method.head.bottleneck_dim=5",
    "method.head.norm=false",
)
TINY_VIT = (
    "backbone=vit",
    "backbone.width=8",
    "backbone.depth=2",
    "backbone.heads=2",
    "backbone.patch_size=4",
    "backbone.image_size=16",
)
TINY_RESNET = ("backbone=resnet", "backbone.depth=10", "backbone.num_stages=2", "backbone.width=4")


def setup_of(*words: str, **fields: Any) -> Setup:
    mine = [f"method.{name}={value}" for name, value in fields.items()]
    network = TINY_RESNET if "backbone=resnet" in words else TINY_VIT
    return Setup.of(load_config("digits/dino", [*network, *HEAD, "train.batch_size=3", *words, *mine]), 6)


def small_dino(*words: str, **fields: Any) -> DINO:
    torch.manual_seed(0)
    setup = setup_of(*words, **fields)
    network = ResNet if setup.config.backbone.name == "resnet" else ViT
    method = DINO(setup, network(setup.config.backbone)).double()
    with torch.no_grad():  # a teacher that has gone its own way
        for parameter in (*method.teacher.parameters(), *method.teacher_head.parameters()):
            parameter.add_(0.05 * torch.randn_like(parameter))
        method.centre.value.copy_(0.1 * torch.randn(7, dtype=torch.float64))
    return method


def whole_batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = {
        "global": torch.randn(3, 2, 3, 16, 16, dtype=torch.float64, generator=generator),
        "local": torch.randn(3, 2, 3, 8, 8, dtype=torch.float64, generator=generator),
    }
    return Batch(views, torch.arange(3), torch.full((3,), -1))


def at(index: int) -> Step:
    return Step(index, 100, 10)


def scores_by_hand(backbone: Any, head: Any, images: Tensor) -> Tensor:
    """[n, K]: MLP, unit sphere, cosines with the prototypes."""
    z = head.mlp(backbone(images))
    z = z / z.norm(dim=1, keepdim=True)
    prototypes = head.last.weight / head.last.weight.norm(dim=1, keepdim=True)
    scale = 1.0 if head.last.scale is None else head.last.scale.T
    return (z @ prototypes.T) * scale


def expected_loss(method: DINO, batch: Batch, teacher_temp: float) -> Tensor:
    """Algorithm 1 term by term."""
    images = [*batch.views["global"].unbind(1), *batch.views["local"].unbind(1)]
    students = [scores_by_hand(method.backbone, method.head, view) for view in images]
    teachers = [scores_by_hand(method.teacher.module, method.teacher_head.module, view) for view in images[:2]]
    terms = []
    for assigned, told in enumerate(teachers):
        for view, said in enumerate(students):
            if view == assigned:
                continue
            for image in range(3):
                t = ((told[image] - method.centre.value) / teacher_temp).exp()
                p = (said[image] / 0.1).exp()
                terms.append(-(t / t.sum() * (p / p.sum()).log()).sum())
    assert len(terms) == 2 * (NUM_VIEWS - 1) * 3
    return torch.stack(terms).mean()


def updated(method: DINO, step: Step, batch: Batch) -> StepOutput:
    """One step as the loop takes it, with decay and momentum."""
    optimizer = torch.optim.SGD(
        [p for p in method.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1, momentum=0.9
    )
    out: StepOutput = method(batch, step)
    out.loss.backward()
    method.after_backward(step)
    optimizer.step()
    method.after_update(step, batch, out.carry)
    return out


@pytest.mark.parametrize("last_layer", ["unit", "weight_norm"])
def test_each_view_predicts_the_centred_and_sharpened_teacher_on_the_other_large_views(last_layer: str) -> None:
    method, batch = small_dino(**{"head.last_layer": last_layer}), whole_batch()
    out = method(batch, at(0))
    torch.testing.assert_close(out.loss, expected_loss(method, batch, 0.04), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == DINO.logged


def test_gradients_reach_the_student_alone_and_are_those_of_the_loss_by_hand() -> None:
    method, batch = small_dino(), whole_batch()
    method(batch, at(0)).loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    assert not any(name.startswith("teacher") for name in ours)
    method.zero_grad()
    expected_loss(method, batch, 0.04).backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-12)


def test_a_resnet_trains_as_well_and_each_size_passes_alone() -> None:
    method, batch = small_dino("backbone=resnet"), whole_batch()
    sides: list[int] = []
    method.backbone.register_forward_hook(lambda _, inputs, __: sides.append(inputs[0].shape[-1]))
    out = method(batch, at(0))
    out.loss.backward()
    assert sides == [16, 8]
    assert all(p.grad is not None for p in (*method.backbone.parameters(), *method.head.parameters()))
    assert method.teacher.training


def test_the_teachers_temperature_rises_with_every_step_and_stays() -> None:
    method, batch = small_dino(teacher_temp=0.07, teacher_temp_warmup="10st"), whole_batch()
    for index, temp in [(0, 0.04), (5, 0.055), (10, 0.07), (90, 0.07)]:
        expected = expected_loss(method, batch, temp)
        torch.testing.assert_close(method(batch, at(index)).loss, expected, rtol=1e-9, atol=0)


def test_the_centre_follows_the_mean_of_the_teachers_raw_scores_after_the_loss() -> None:
    method, batch = small_dino(), whole_batch()
    before = method.centre.value.clone()
    images = batch.views["global"].flatten(0, 1)
    mean = scores_by_hand(method.teacher.module, method.teacher_head.module, images).mean(dim=0)
    out = method(batch, at(0))
    assert torch.equal(method.centre.value, before)
    method.after_update(at(0), batch, out.carry)
    torch.testing.assert_close(method.centre.value, 0.9 * before + 0.1 * mean, rtol=1e-9, atol=1e-12)


def test_the_teacher_follows_the_updated_student_by_a_cosine_of_momenta() -> None:
    method, batch = small_dino(momentum=0.9), whole_batch()
    for index in (0, 25, 50):
        before = copy.deepcopy(method.teacher.module.state_dict())
        updated(method, at(index), batch)
        momentum = 1 - (1 - 0.9) * (math.cos(math.pi * index / 100) + 1) / 2
        for name, value in method.backbone.named_parameters():
            expected = momentum * before[name] + (1 - momentum) * value
            torch.testing.assert_close(method.teacher.module.get_parameter(name), expected, rtol=1e-9, atol=1e-12)
    head = {name: value.clone() for name, value in method.teacher_head.named_parameters()}
    updated(method, at(50), batch)
    assert all(not torch.equal(head[name], value) for name, value in method.teacher_head.named_parameters())


@pytest.mark.parametrize("last_layer", ["unit", "weight_norm"])
def test_the_last_layer_is_held_for_an_epoch_and_decay_does_not_move_it(last_layer: str) -> None:
    method = small_dino(freeze_last_layer="1ep", **{"head.last_layer": last_layer})
    begun = [parameter.detach().clone() for parameter in method.head.last.parameters()]
    for index in (0, 9, 10):
        updated(method, at(index), whole_batch(index))
        same = [torch.equal(was, now) for was, now in zip(begun, method.head.last.parameters(), strict=True)]
        assert same == [index < 10] * (1 if last_layer == "unit" else 2)


def test_the_length_of_a_prototype_is_of_no_matter() -> None:
    method, batch = small_dino(), whole_batch()
    loss = method(batch, at(0)).loss
    with torch.no_grad():
        method.head.last.weight.mul_(torch.rand(7, 1, dtype=torch.float64) + 0.5)
    torch.testing.assert_close(method(batch, at(0)).loss, loss, rtol=1e-9, atol=0)


def test_entropy_and_divergence_add_up_to_the_loss() -> None:
    out = small_dino()(whole_batch(), at(0))
    entropy, kl = out.metrics["teacher_entropy"], out.metrics["kl"]
    assert 0 < entropy < math.log(7)
    assert kl > 0
    torch.testing.assert_close(entropy + kl, out.loss.detach())


@pytest.mark.parametrize("fields", [{"temperature": 1e-4}, {"teacher_temp_start": 1e-4}, {"temperature": 1e4}])
def test_loss_and_gradients_are_finite_at_extremes_and_for_equal_images(fields: dict[str, float]) -> None:
    batch = whole_batch().map(lambda rows: rows.float() if rows.is_floating_point() else rows)
    for seen in (batch, batch.map(torch.zeros_like)):
        method = small_dino(**fields).float()
        out = method(seen, at(0))
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_the_teacher_is_exported() -> None:
    method = small_dino()
    assert method.export() is method.teacher.module
    assert method.export().state_dict().keys() == method.backbone.state_dict().keys()


def test_views_and_networks_are_the_papers() -> None:
    config = DINO.Config()
    assert config.views.recipe() == RECIPES["dino"]()
    head = config.head
    assert (head.num_prototypes, head.hidden_dim, head.bottleneck_dim, head.num_layers) == (65536, 2048, 256, 3)
    assert not head.norm
    method = small_dino()
    kinds = [type(layer).__name__ for layer in method.head.mlp]
    assert kinds == ["Linear", "GELU", "Linear", "GELU", "Linear"]


def test_check_refuses_a_single_view() -> None:
    with pytest.raises(ConfigError, match="teacher's scores of one view from another: give at least 2 views"):
        DINO.check(setup_of(**{"views.num": 1, "views.num_local": 0}))
    DINO.check(setup_of(**{"views.num": 1, "views.num_local": 1}))
