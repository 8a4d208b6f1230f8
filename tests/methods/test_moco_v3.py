import copy
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.moco_v3 import MoCoV3
from raysl.optim.build import peak_lr
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import GaussianBlur, Solarize

STEP = Step(0, 10, 5)
TINY = ("backbone.width=8", "backbone.heads=2", "backbone.depth=1")


def setup_of(*words: str) -> Setup:
    mine = ("train.batch_size=5", "method.hidden_dim=16", "method.output_dim=8")
    return Setup.of(load_config("digits/moco_v3", [*mine, *words]), 5)


def small_moco(*words: str) -> MoCoV3:
    torch.manual_seed(0)
    setup = setup_of(*(words or TINY))
    return MoCoV3(setup, resolve("backbone", setup.config.backbone.name)(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(5, 2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(5), torch.full((5,), -1))


def test_loss_is_both_ways_from_queries_to_keys_times_twice_the_temperature() -> None:
    method, batch = small_moco(*TINY, "method.temperature=0.3"), whole_batch()
    with torch.no_grad():  # keys unlike queries
        for parameter in method.teacher.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    views = batch.views["global"].unbind(1)
    queries = [F.normalize(method.predictor(method.projector(method.backbone(view))), dim=1) for view in views]
    keys = [F.normalize(method.teacher.module(view), dim=1) for view in views]
    total, hits = 0.0, 0
    for q, k in ((queries[0], keys[1]), (queries[1], keys[0])):
        for row in range(5):
            weights = [math.exp((q[row] @ other).item() / 0.3) for other in k]
            total += -2 * 0.3 * math.log(weights[row] / sum(weights)) / 5
            hits += weights[row] == max(weights)
    out = method(batch, STEP)
    assert out.loss.item() == pytest.approx(total, rel=1e-9)
    assert out.metrics["contrastive_top1"].item() == pytest.approx(100 * hits / 10)
    assert tuple(out.metrics) == MoCoV3.logged


def test_patches_stay_as_they_begin_where_the_backbone_has_some() -> None:
    method = small_moco()
    method(whole_batch(), STEP).loss.backward()
    without = {name for name, parameter in method.named_parameters() if parameter.grad is None}
    frozen = {"backbone.patch_embed.proj.weight", "backbone.patch_embed.proj.bias"}
    assert without == frozen | {name for name, _ in method.named_parameters() if name.startswith("teacher.")}
    assert all(p.requires_grad for p in small_moco(*TINY, "method.freeze_patches=false").backbone.parameters())
    other = small_moco("backbone={name: resnet, depth: 10, width: 4, num_stages: 2}")
    assert all(p.requires_grad for p in other.backbone.parameters())


def test_the_teacher_follows_ever_more_slowly_and_holds_no_predictor() -> None:
    method = small_moco()
    before = copy.deepcopy(method.teacher.module)
    assert {name.split(".")[0] for name, _ in before.named_parameters()} == {"0", "1"}
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.projector.parameters()):
            parameter.add_(0.1)
    step = Step(6, 10, 5)
    momentum = 1 - (1 - 0.99) * (1 + math.cos(math.pi * 0.6)) / 2
    method.after_update(step, whole_batch(), {})
    student = (*method.backbone.parameters(), *method.projector.parameters())
    for now, then, to in zip(method.teacher.module.parameters(), before.parameters(), student, strict=True):
        torch.testing.assert_close(now, momentum * then + (1 - momentum) * to)


def test_heads_are_the_papers() -> None:
    method = small_moco(*TINY, "method.projector_layers=3")
    layer = ["Linear", "BatchNorm1d", "ReLU"]
    assert [type(part).__name__ for part in method.projector] == [*layer, *layer, *layer[:2]]
    assert [type(part).__name__ for part in method.predictor] == [*layer, *layer[:2]]
    assert (method.projector[-1].affine, method.predictor[-1].affine) == (False, False)
    assert all(head[place].bias is None for head in (method.projector, method.predictor) for place in (0, 3))
    plain = small_moco(*TINY, "method.predictor_norm=false").predictor[-1]
    assert type(plain) is torch.nn.Linear
    assert plain.bias is not None
    bare = small_moco(*TINY, "method.predictor_norm=false", "method.predictor_bias=false").predictor[-1]
    assert bare.bias is None


def test_the_published_settings() -> None:
    config = load_config("moco_v3", ["data.path=/images"])
    MoCoV3.check(Setup.of(config, 1_281_167, 1000))
    method = config.method
    assert (method.temperature, method.projector_layers, method.hidden_dim, method.output_dim) == (0.2, 3, 4096, 256)
    assert (method.momentum, method.momentum_end) == (0.99, 1.0)
    assert peak_lr(config.optim, config.train.batch_size) == pytest.approx(2.4e-3)
    first, second = method.views.recipe().groups["global"]
    assert first.crop.scale == second.crop.scale == (0.08, 1.0)
    assert [t.p for t in first.transforms + second.transforms if isinstance(t, GaussianBlur)] == [1.0, 0.1]
    assert [t.p for t in first.transforms if isinstance(t, Solarize)] == []
    assert [t.p for t in second.transforms if isinstance(t, Solarize)] == [0.2]
    other = load_config("moco_v3_resnet50", ["data.path=/images"])
    MoCoV3.check(Setup.of(other, 1_281_167, 1000))
    assert (other.method.temperature, peak_lr(other.optim, other.train.batch_size)) == (1.0, pytest.approx(9.6))


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float, is_collapsed: bool) -> None:
    method, batch = small_moco(*TINY, f"method.temperature={temperature}"), whole_batch()
    if is_collapsed:
        batch = batch.map(torch.zeros_like)
    out = method(batch, STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.views.num=3",), "method.views.num is 3; MoCo v3 takes a query and a key"),
        (("train.batch_size=1",), "train.batch_size is 1; MoCo v3 contrasts images"),
        (
            ("backbone={name: resnet, depth: 10}", "method.freeze_patches=true"),
            "method.freeze_patches is true, and backbone 'resnet' has no patches; leave it out, or set backbone=vit",
        ),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoCoV3.check(setup_of(*words))
