import re

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.ibot import IBOT
from raysl.nn.backbones.vit import ViT
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.transforms.papers import RECIPES

STEP = Step(0, 100, 10)
MASKED = (((), (5,)), ((0, 1, 4, 5), ()), ((3, 7), (0, 1, 2, 4, 5, 6, 8, 9)))  # of 16 patches, by image and large view
SMALL = (
    "backbone.width=8",
    "backbone.depth=2",
    "backbone.heads=2",
    "method.shared_head=true",
    "method.head.num_prototypes=7",
    "method.head.norm=false",
    "method.head.hidden_dim=12",
    "method.head.bottleneck_dim=5",
    "method.teacher_temp_start=0.04",
    "train.batch_size=3",
)


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/ibot", [*SMALL, *words]), 6)


def small_ibot(*words: str) -> IBOT:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = IBOT(setup, ViT(setup.config.backbone)).double()
    teachers = (method.teacher, method.teacher_head, method.teacher_patch_head)
    with torch.no_grad():  # a teacher that has gone its own way
        for parameter in (p for teacher in teachers if teacher is not None for p in teacher.parameters()):
            parameter.add_(0.05 * torch.randn_like(parameter))
        for centre in (method.centre, method.patch_centre):
            centre.value.copy_(0.1 * torch.randn(7, dtype=torch.float64))
    return method


def whole_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {
        "global": torch.randn(3, 2, 3, 16, 16, dtype=torch.float64, generator=generator),
        "local": torch.randn(3, 2, 3, 8, 8, dtype=torch.float64, generator=generator),
    }
    mask = torch.zeros(3, 2, 16, dtype=torch.bool)
    for image, by_view in enumerate(MASKED):
        for view, places in enumerate(by_view):
            mask[image, view, list(places)] = True
    return Batch(views, torch.arange(3), torch.full((3,), -1), extras={"global.mask": mask.view(3, 2, 4, 4)})


def cross_entropy(told: Tensor, centre: Tensor, said: Tensor, temp: float = 0.04) -> Tensor:
    t = torch.softmax((told - centre) / temp, dim=0)
    return -(t * torch.log_softmax(said / 0.1, dim=0)).sum()


def expected_losses(method: IBOT, batch: Batch) -> tuple[Tensor, Tensor]:
    """Equations 2 and 3 term by term: one image, view and patch after another."""
    head, patch_head = method.head, method.patch_head or method.head
    teacher_head = method.teacher_head.module
    teacher_patch_head = teacher_head if method.teacher_patch_head is None else method.teacher_patch_head.module
    class_terms, patch_terms = [], []
    for image in range(3):
        large, small = batch.views["global"][image], batch.views["local"][image]
        mask = batch.extras["global.mask"][image]
        seen = [method.backbone.tokens(large[view : view + 1], mask[view : view + 1])[0] for view in range(2)]
        whole = [method.teacher.module.tokens(large[view : view + 1])[0] for view in range(2)]
        locals_ = [method.backbone.tokens(small[view : view + 1])[0] for view in range(2)]
        for assigned in range(2):
            told = teacher_head(whole[assigned][:1])[0]
            for view, tokens in enumerate(seen + locals_):
                if view != assigned:
                    class_terms.append(cross_entropy(told, method.centre.value, head(tokens[:1])[0]))
        for view, masked in enumerate(MASKED[image]):
            places = range(16) if method.config.patch_loss == "all" else masked
            told = teacher_patch_head(whole[view][1:])
            said = patch_head(seen[view][1:])
            terms = [cross_entropy(told[place], method.patch_centre.value, said[place]) for place in places]
            patch_terms.append(torch.stack(terms).mean() if terms else told.new_zeros(()))
    assert (len(class_terms), len(patch_terms)) == (3 * 2 * 3, 6)
    return torch.stack(class_terms).mean(), torch.stack(patch_terms).mean()


@pytest.mark.parametrize("shared", [True, False])
def test_class_tokens_and_masked_patches_predict_the_teacher_that_sees_whole_views(shared: bool) -> None:
    method, batch = small_ibot(f"method.shared_head={shared}", "method.patch_weight=0.7"), whole_batch()
    assert (method.patch_head is None) == shared
    out = method(batch, STEP)
    class_loss, patch_loss = expected_losses(method, batch)
    torch.testing.assert_close(out.metrics["class_loss"], class_loss.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(out.metrics["patch_loss"], patch_loss.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(out.loss, class_loss + 0.7 * patch_loss, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == IBOT.logged


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_those_of_the_losses_by_hand_and_reach_the_mask_token(shared: bool) -> None:
    method, batch = small_ibot(f"method.shared_head={shared}"), whole_batch()
    method(batch, STEP).loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    assert ours["backbone.mask_token"].abs().max() > 0
    assert not any(name.startswith("teacher") for name in ours)
    method.zero_grad()
    sum(expected_losses(method, batch)).backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-12)


@pytest.mark.thorough
def test_ibot_plus_plus_learns_every_patch_of_views_that_are_masked_as_ibots() -> None:
    method, batch = small_ibot("method.patch_loss=all", "method.patch_weight=0.7"), whole_batch()
    out = method(batch, STEP)
    class_loss, patch_loss = expected_losses(method, batch)
    torch.testing.assert_close(out.metrics["patch_loss"], patch_loss.detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(out.loss, class_loss + 0.7 * patch_loss, rtol=1e-9, atol=0)
    assert patch_loss != expected_losses(small_ibot(), batch)[1]


def test_without_any_masked_patch_the_patch_loss_is_zero_and_all_is_finite() -> None:
    method, batch = small_ibot(), whole_batch()
    batch.extras["global.mask"].fill_(False)
    out = method(batch, STEP)
    out.loss.backward()
    assert out.metrics["patch_loss"] == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)


def test_centres_follow_class_tokens_and_all_patches_masked_or_not() -> None:
    method, batch = small_ibot("method.patch_centre_momentum=0.8"), whole_batch()
    before = [centre.value.clone() for centre in (method.centre, method.patch_centre)]
    tokens = method.teacher.module.tokens(batch.views["global"].flatten(0, 1))
    scores = method.teacher_head.module(tokens)  # [6, 17, 7]
    out = method(batch, STEP)
    method.after_update(STEP, batch, out.carry)
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(method.centre.value, 0.9 * before[0] + 0.1 * scores[:, 0].mean(dim=0), **close)
    patches = scores[:, 1:].mean(dim=(0, 1))
    torch.testing.assert_close(method.patch_centre.value, 0.8 * before[1] + 0.2 * patches, **close)


@pytest.mark.parametrize("shared", [True, False])
def test_after_an_update_every_teacher_has_followed(shared: bool) -> None:
    method, batch = small_ibot(f"method.shared_head={shared}", "method.momentum=0.75"), whole_batch()
    out = method(batch, STEP)
    before = {name: value.clone() for name, value in method.named_parameters() if name.startswith("teacher")}
    method.after_update(STEP, batch, out.carry)
    for name, was in before.items():
        student = name.replace("teacher_patch_head.module", "patch_head").replace("teacher_head.module", "head")
        value = method.get_parameter(student.replace("teacher.module", "backbone"))
        torch.testing.assert_close(method.get_parameter(name), 0.75 * was + 0.25 * value, rtol=1e-9, atol=1e-12)


def test_prototypes_are_held_for_an_epoch() -> None:
    method = small_ibot("method.shared_head=false", "method.freeze_last_layer=1ep")
    for index in (9, 10):
        method.zero_grad()
        method(whole_batch(), STEP).loss.backward()
        method.after_backward(Step(index, 100, 10))
        held = [head.last.weight.grad is None for head in (method.head, method.patch_head)]
        assert held == [index < 10] * 2


@pytest.mark.thorough
def test_the_mask_token_gets_no_decay_and_the_exported_teacher_loads_alone() -> None:
    method = small_ibot()
    _, excluded = split_groups(method, method.setup.config.optim)
    assert any(parameter is method.backbone.mask_token for parameter in excluded["params"])
    assert method.export() is method.teacher.module
    ViT(method.setup.config.backbone).double().load_state_dict(method.export().state_dict())


@pytest.mark.thorough
def test_views_and_masks_are_the_papers() -> None:
    setup = Setup.of(load_config("ibot", ["data.path=/images"]), 4096)
    IBOT.check(setup)
    plain = load_config("ibot", ["data.path=/images", "method.views={interpolation: bilinear, blur_kernel_size: null}"])
    assert IBOT.views(Setup.of(plain, 4096)) == RECIPES["ibot"]()
    assert IBOT.Config().head.num_prototypes == 8192


@pytest.mark.thorough
def test_the_most_patches_that_a_mask_hides_are_gathered() -> None:
    setup = setup_of("method.mask_share=[0.2,0.6]")
    assert small_ibot("method.mask_share=[0.2,0.6]").num_learned == 9  # of 16
    assert small_ibot().num_learned == 8
    assert small_ibot("method.patch_loss=all").num_learned == 16
    (view, _) = IBOT.views(setup).groups["global"]
    assert view.mask is not None
    assert view.mask.most_masked(196) == 117


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backbone.mask_token=false",), "backbone.mask_token is false, and iBOT puts that token"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
        (
            ("method.views.local_size=10",),
            "small views of 10 pixels are not covered by patches of 4; set method.views.local_size=8 or 12, or",
        ),
        (("method.mask_share=[0.0,0.05]",), "method.mask_share=[0.0, 0.05] masks none of the 16 patches"),
        (("method.views.num=1", "method.views.num_local=0"), "iBOT predicts the teacher's scores of one view"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        IBOT.check(setup_of(*words))
