import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.dino_v3 import DINOv3
from raysl.nn.backbones.vit import ViT
from raysl.nn.dino_head import DINOHead
from raysl.optim.build import set_schedules
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.gradients import clip_norm
from raysl.train.prepare import check_views
from raysl.train.state import TrainState
from tests.methods.test_dino_v2 import SMALL, expected_losses
from tests.methods.test_ibot import whole_batch

STEP = Step(0, 100, 10)
GRAM = ("method.gram_weight=2", "method.gram_teacher=untrained", "method.gram_size=32")


def setup_of(*words: str, name: str = "digits/dino_v3") -> Setup:
    return Setup.of(load_config(name, [*SMALL, *words]), 6)


def small_dino_v3(*words: str) -> DINOv3:
    """One whose networks at rest have gone their own ways, and whose places nothing moves."""
    torch.manual_seed(0)
    setup = setup_of("backbone.rope_rescale=1", *words)
    method = DINOv3(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():
        for network in (method.teacher, method.teacher_head, method.teacher_patch_head, method.gram_teacher):
            for parameter in () if network is None else network.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def batch_with_gram(side: int = 32) -> Batch:
    batch = whole_batch()
    generator = torch.Generator().manual_seed(2)
    batch.views["gram"] = torch.randn(3, 2, 3, side, side, dtype=torch.float64, generator=generator)
    return batch


def cosines(features: Tensor) -> Tensor:
    """Of all pairs of rows, one by one."""
    rows = [row / row.norm() for row in features]
    return torch.stack([torch.stack([one @ other for other in rows]) for one in rows])


def gram_by_hand(method: DINOv3, batch: Batch) -> Tensor:
    """The mean over images, large views and pairs of patches of the squared difference of cosines."""
    large, mask, prefix = batch.views["global"], batch.extras["global.mask"], method.backbone.num_prefix_tokens
    terms = []
    for i in range(3):
        for v in range(2):
            ours = method.backbone.tokens(large[i, [v]], mask[i, [v]])[0, prefix:]
            theirs = method.gram_teacher.module.tokens(batch.views["gram"][i, [v]])[0, prefix:]
            side = round(len(theirs) ** 0.5)
            image = theirs.T.reshape(1, -1, side, side)
            shrunk = torch.nn.functional.interpolate(image, size=(4, 4), mode="bicubic")[0].flatten(1).T
            terms.append((cosines(ours) - cosines(shrunk)).square().mean())
    return torch.stack(terms).mean()


@pytest.mark.thorough
@pytest.mark.parametrize("side", [16, 32])
def test_the_loss_is_dinov2s_and_that_of_cosines_between_patches(side: int) -> None:
    method, batch = small_dino_v3(*GRAM), batch_with_gram(side)
    out = method(batch, STEP)
    expected = expected_losses(method, batch)
    anchored = gram_by_hand(method, batch)
    torch.testing.assert_close(out.metrics["gram"], anchored.detach(), rtol=1e-8, atol=0)
    total = expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"] + 2 * anchored
    torch.testing.assert_close(out.loss, total, rtol=1e-8, atol=0)
    assert tuple(out.metrics) == DINOv3.logged
    out.loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    method.zero_grad()
    total.backward()
    assert not any(name.startswith(("teacher", "gram_teacher")) for name in ours)
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-6, atol=1e-11)


@pytest.mark.thorough
def test_without_a_gram_teacher_it_is_dinov2() -> None:
    method, batch = small_dino_v3(), whole_batch()
    out, expected = method(batch, STEP), expected_losses(method, batch)
    total = expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"]
    torch.testing.assert_close(out.loss, total, rtol=1e-8, atol=0)
    assert out.metrics["gram"] == 0
    assert "gram" not in DINOv3.views(setup_of()).groups


@pytest.mark.thorough
def test_pairs_with_a_small_view_have_a_weight_of_their_own() -> None:
    batch, torch_losses = whole_batch(), []
    for weight in (1.0, 0.0, 0.25):
        method = small_dino_v3(f"method.local_weight={weight}", "method.koleo_weight=0", "method.patch_weight=0")
        torch_losses.append(method(batch, STEP).loss)
    whole, large, mixed = torch_losses
    # of six pairs two are of large views: 2 * a / 6, and 4 * b / 6
    torch.testing.assert_close(mixed, large + 0.25 * (whole - large))
    alone = small_dino_v3("method.koleo_weight=0", "method.patch_weight=0")
    only_large = Batch({"global": batch.views["global"]}, batch.index, batch.label, extras=batch.extras)
    torch.testing.assert_close(large, alone(only_large, STEP).loss * 2 / 6)


@pytest.mark.thorough
def test_the_weight_of_cosines_rises_along_half_a_cosine() -> None:
    method, batch = small_dino_v3(*GRAM, "method.gram_warmup=20st"), batch_with_gram()
    plain = method(batch, STEP)
    for index, share in ((0, 0.0), (5, (1 - 0.5**0.5) / 2), (10, 0.5), (20, 1.0), (90, 1.0)):
        with torch.no_grad():
            out = method(batch, Step(index, 100, 10))
        torch.testing.assert_close(out.loss - plain.loss.detach(), 2 * share * out.metrics["gram"], atol=1e-9, rtol=0)


def test_the_gram_teacher_becomes_a_copy_of_the_teacher_so_often_and_no_more() -> None:
    method = small_dino_v3(*GRAM, "method.gram_update_every=3st", "method.gram_updates=2")
    name, copied = "blocks.0.attn.qkv.weight", []
    for index in range(12):
        before = method.gram_teacher.module.get_parameter(name).clone()
        with torch.no_grad():
            method.backbone.get_parameter(name).add_(0.1)
        method.after_update(Step(index, 100, 10), whole_batch(), {})
        after = method.gram_teacher.module.get_parameter(name)
        if not torch.equal(before, after):
            assert torch.equal(after, method.teacher.module.get_parameter(name))
            copied.append(index + 1)
    assert copied == [3, 6]


def test_the_gram_teacher_sees_the_same_part_larger_and_in_its_own_colours() -> None:
    config = load_config(
        "digits/dino_v3", [*GRAM, "method.views.flip=0.5", "method.views.jitter_p=0", "method.views.grayscale_p=0",
                           "method.views.blur_p=0", "method.views.second_blur_p=0", "method.views.solarize_p=1",
                           "method.views.second_solarize_p=1", "method.views.affine_p=0"]
    )  # fmt: skip
    recipe = check_views(Setup.of(config, 100, 10), Classes.of(config))
    assert {name: (len(views), views[0].size) for name, views in recipe.groups.items()}["gram"] == (2, 32)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(20, 3, 6, 6, generator=generator) * 120  # dark, so that solarisation changes nothing
    images = list(torch.nn.functional.interpolate(coarse, 60, mode="bilinear").to(torch.uint8))
    views = recipe(images, np.arange(20), seed=0, epoch=0)
    shrunk = torch.nn.functional.interpolate(views["gram"].flatten(0, 1).float(), 16, mode="area")
    assert (shrunk - views["global"].flatten(0, 1).float()).abs().mean() < 4
    assert (shrunk.flip(-1) - views["global"].flatten(0, 1).float()).abs().mean() > 10


def test_the_student_rescales_places_and_no_teacher_does() -> None:
    setup = setup_of(*GRAM)
    method = DINOv3(setup, ViT(setup.config.backbone))
    assert method.backbone.rope.rescale == 2
    assert method.teacher.module.rope.slots == method.gram_teacher.module.rope.slots == ()


def saved(folder: Path, *words: str, name: str = "digits/dino_v3") -> tuple[str, TrainState]:
    """A checkpoint of a run whose networks have gone their own ways, and what was saved."""
    small = SMALL if "dino" in name else ()
    state = TrainState.create(Setup.of(load_config(name, [*small, *words]), 60, 10))
    with torch.no_grad():
        for parameter in state.method.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    path = folder / "checkpoint_000000001"
    state.save(path, {})
    return str(path), state


@pytest.mark.thorough
def test_a_run_begins_with_the_backbone_as_gram_teacher_or_with_that_of_its_weights(tmp_path: Path) -> None:
    first, state = saved(tmp_path / "first")
    words = (f"method.weights={first}", "method.gram_weight=1")
    second = TrainState.create(setup_of(*words)).method
    assert second.gram_teacher is not None
    exported = state.method.export().state_dict()
    for network in (second.teacher.module, second.gram_teacher.module):
        assert [name for name, value in network.state_dict().items() if not torch.equal(value, exported[name])] == []
    uri, state = saved(tmp_path / "second", *words)
    third = TrainState.create(setup_of(f"method.weights={uri}", "method.gram_weight=1")).method
    old = state.method.gram_teacher.module.state_dict()
    assert all(torch.equal(value, old[name]) for name, value in third.gram_teacher.module.state_dict().items())
    named = TrainState.create(setup_of(f"method.weights={uri}", "method.gram_weight=1", f"method.gram_teacher={first}"))
    assert all(
        torch.equal(value, exported[name]) for name, value in named.method.gram_teacher.module.state_dict().items()
    )
    assert "gram_teacher (method.gram_teacher says where it comes from)" in named.weights["left_out"]


@pytest.mark.thorough
def test_a_gram_teacher_may_be_another_network_with_other_patches(tmp_path: Path) -> None:
    uri, _ = saved(tmp_path, "backbone.width=16", "backbone.patch_size=8")
    method = TrainState.create(setup_of("method.gram_weight=1", f"method.gram_teacher={uri}")).method.double()
    method(batch_with_gram(16), STEP).loss.backward()


@pytest.mark.thorough
def test_a_trained_network_and_its_heads_teach_a_student_that_sees_all_patches(tmp_path: Path) -> None:
    uri, teacher = saved(tmp_path, "backbone.width=16", "method.head.hidden_dim=20", "backbone.rope_rescale=1")
    state = TrainState.create(setup_of(f"method.teacher={uri}", "backbone.rope_rescale=1"))
    method, batch = state.method.double(), whole_batch()
    theirs: Any = teacher.method.double()
    out = method(batch, STEP)
    images, prefix = batch.views["global"].flatten(0, 1), method.backbone.num_prefix_tokens
    told = theirs.teacher_head(theirs.teacher.module.tokens(images)[:, 0])
    q = (told / 0.04).exp()
    for _ in range(3):
        q = q / q.sum(dim=0, keepdim=True)
        q = q / q.sum(dim=1, keepdim=True)
    scores = method.head(method.backbone.tokens(images)[:, 0])
    small = method.head(method.backbone.tokens(batch.views["local"].flatten(0, 1))[:, 0]).view(3, 2, -1)
    log_p = torch.log_softmax(torch.cat([scores.view(3, 2, -1), small], dim=1) / 0.1, dim=-1)
    terms = [-(q.view(3, 2, -1)[:, a] * log_p[:, v]).sum(dim=1) for a in range(2) for v in range(4) if a != v]
    torch.testing.assert_close(out.metrics["class_loss"], torch.stack(terms).mean().detach(), rtol=1e-8, atol=0)
    assert prefix == 3
    out.loss.backward()
    assert all(p.grad is None for p in method.trained.parameters())
    before = [p.clone() for p in method.trained.parameters()]
    method.after_update(STEP, batch, {})
    assert all(torch.equal(p, was) for p, was in zip(method.trained.parameters(), before, strict=True))
    assert method.export() is method.teacher.module


def test_prototypes_are_a_linear_layer_that_starts_small() -> None:
    """A deviation of 0.02 in 256 channels: rows of length 0.32, and scores of that deviation at temperature 0.04."""
    torch.manual_seed(0)
    head = DINOHead(48, dataclasses.replace(DINOv3.Config().head, num_prototypes=4096, hidden_dim=64))
    assert [name for name, _ in head.last.named_parameters()] == ["weight"]
    assert head.last.weight.detach().norm(dim=1).mean() == pytest.approx(0.32, rel=0.01)
    codes = torch.softmax(head(torch.randn(100, 48)).detach() / 0.04, dim=-1)
    assert torch.special.entr(codes).sum(dim=1).mean() == pytest.approx(
        math.log(4096) - (0.02 / 0.04) ** 2 / 2, abs=0.01
    )
    with torch.no_grad():
        rows = torch.randn(3, 48)
        scores = head(rows)
        head.last.weight.mul_(2.0)
        torch.testing.assert_close(head(rows), 2 * scores)


def rates_of_the_authors(name: str, num_blocks: int) -> tuple[float, float]:
    """Factors of rate and decay of a parameter in the authors' code (param_groups.py), by its name here."""
    part, _, rest = name.partition(".")
    is_plain = name.endswith("bias") or "norm" in name or "gamma" in name
    layer = num_blocks + 1
    if part == "backbone" and not rest.startswith("norm"):
        layer = int(rest.split(".")[1]) + 1 if rest.startswith("blocks.") else 0
    rate = 0.9 ** (num_blocks + 1 - layer) * (0.2 if "patch_embed" in name else 1.0)
    return rate, 0.0 if is_plain else 1.0


def test_an_update_is_adamw_with_the_authors_rates_and_decay() -> None:
    """The first update: each part's gradient is clipped to 3, and the averages of Adam are the gradient itself."""
    words = (*SMALL, "data=digits", "data.image_size=16", "backbone.patch_size=4", "method.views.num_local=2",
             "method.views.size=16", "method.views.local_size=8", "backbone.drop_path=0", "optim.warmup=0st",
             "method.freeze_last_layer=0st", "backbone.num_registers=1",
             "optim.decay_tokens=[cls_token,reg_token,mask_token]")  # fmt: skip
    state = TrainState.create(Setup.of(load_config("dino_v3", words), 60, 10))
    method, plan, step = state.method.double(), state.setup.plan, STEP
    (method(whole_batch(), step).loss * 100).backward()
    begun = {name: p.detach().clone() for name, p in method.named_parameters() if p.requires_grad}
    grads = {name: method.get_parameter(name).grad.clone() for name in begun}
    norms = {part: sum(g.square().sum() for n, g in grads.items() if n.startswith(f"{part}.")).sqrt()
             for part in ("backbone", "head", "patch_head")}  # fmt: skip
    assert max(norms.values()) > 3
    set_schedules(state.optimizer, plan.optim, step, plan.batch_size)
    clip_norm(method, plan.clip_grad, plan.clip_grad_over)
    state.optimizer.step()
    lr = 4e-3 * (3 / 1024) ** 0.5
    for name, value in begun.items():
        rate, decay = rates_of_the_authors(name, num_blocks=2)
        g = grads[name] * min(1.0, 3.0 / (float(norms[name.partition(".")[0]]) + 1e-6))
        expected = value - lr * rate * (0.04 * decay * value + g / (g.abs() + 1e-8))
        torch.testing.assert_close(method.get_parameter(name).detach(), expected, rtol=1e-9, atol=1e-12, msg=name)


def test_settings_are_the_authors() -> None:
    config: Any = DINOv3.Config()
    assert (config.momentum, config.head.num_prototypes, config.head.bottleneck_dim) == (0.992, 65_536, 256)
    assert (config.views.local_size, config.views.min_scale, config.gram_weight) == (96, 0.32, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backbone.mask_token=false",), "backbone.mask_token is false, and DINOv3 puts that token"),
        (("method.gram_weight=1",), "method.gram_weight is 1, and the run begins at random"),
        (
            ("method.gram_weight=1", "method.gram_teacher=untrained", "method.gram_size=30"),
            "method.gram_size is 30, which the Gram teacher's patches of 4 do not cover; set method.gram_size=32",
        ),
        (("method.teacher=/nowhere",), "method.teacher: "),
        (("method.gram_weight=1", "method.gram_teacher=/nowhere"), "method.gram_teacher: "),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        DINOv3.check(setup_of(*words))


@pytest.mark.thorough
def test_check_refuses_teachers_that_do_not_fit(tmp_path: Path) -> None:
    more, _ = saved(tmp_path / "more", "method.head.num_prototypes=9")
    with pytest.raises(ConfigError, match=re.escape("and the teacher's 9; set method.head.num_prototypes=9")):
        DINOv3.check(setup_of(f"method.teacher={more}"))
    coarse, _ = saved(tmp_path / "coarse", "backbone.patch_size=8")
    with pytest.raises(ConfigError, match=re.escape("patch_size is 4, and the teacher's 8")):
        DINOv3.check(setup_of(f"method.teacher={coarse}"))
    other, _ = saved(tmp_path / "other", "backbone.width=8", "train.batch_size=16", name="digits/simclr")
    with pytest.raises(ConfigError, match=re.escape("is of method=simclr, which has no heads of DINOv3")):
        DINOv3.check(setup_of(f"method.teacher={other}"))
    nested, _ = saved(tmp_path / "nested", "backbone.width=8", "train.batch_size=16", name="digits/franca")
    with pytest.raises(ConfigError, match=re.escape("is of method=franca, which has no heads of DINOv3")):
        DINOv3.check(setup_of(f"method.teacher={nested}"))
    with pytest.raises(ConfigError, match=re.escape("has no patches; give a ViT")):
        DINOv3.check(setup_of("method.gram_weight=1", f"method.gram_teacher={other}"))
    with pytest.raises(ConfigError, match=re.escape("is another network; set method.gram_updates=0")):
        DINOv3.check(setup_of("method.gram_weight=1", f"method.gram_teacher={coarse}", "method.gram_updates=1"))
