"""Supervised's classifiers on several stages: one pass, a sum of losses, learning rates of their own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.build import from_dict
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.supervised import Supervised
from raysl.nn.pooling import Pool
from raysl.optim.build import set_schedules
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.expected import check_expected_names
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.methods.properties import Steps, exact_steps
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
NETWORK = ("backbone.num_stages=2", "backbone.width=4", "train.batch_size=6")
PLAIN = ("method.label_smoothing=0.1", "method.mixup=0", "method.cutmix=0")
HEADS = (
    "method.heads=[{stage: res3, lr_scale: 10, loss_weight: 0.5, classifier: norm_linear}, "
    "{stage: res2, pool: {kind: max, size: 2}, lr_scale: 0}]"
)
LABELS = torch.tensor([2, 0, 5, -1, 2, 1])


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/supervised", [*NETWORK, *PLAIN, *words]), 60, 6)


def small(*words: str) -> Supervised:
    setup = setup_of(*words)
    Supervised.check(setup)
    method = TrainState.create(setup).method.double()
    assert isinstance(method, Supervised)
    return method


def batch_of(labels: Tensor = LABELS) -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), labels, torch.tensor([0, 0, 0, 1, 1, 2]))


@pytest.mark.thorough
def test_losses_of_all_heads_are_summed_by_their_weights() -> None:
    method, batch = small(HEADS).eval(), batch_of()
    images = batch.views["global"].flatten(0, 1)
    stages = method.backbone.stages(images, ["res2", "res3"])
    first, second = method.heads.classifiers
    scores = [
        method.classifier(method.backbone(images)),
        first(stages["res3"].mean(dim=(2, 3))),
        second(F.adaptive_max_pool2d(stages["res2"], 2).flatten(1)),
    ]
    labels = LABELS.repeat_interleave(2)
    total = torch.zeros((), dtype=torch.float64)
    for weight, logits in zip((1.0, 0.5, 1.0), scores, strict=True):
        total += weight * F.cross_entropy(logits[labels >= 0], labels[labels >= 0], label_smoothing=0.1) * 10 / 12
    out = method(batch, STEP)
    torch.testing.assert_close(out.loss, total, rtol=1e-9, atol=0)
    assert set(out.metrics) == set(Supervised.logged_by(method.config))
    hits = method.evaluation_step(batch)
    assert tuple(hits) == Supervised.evaluated_by(method.config) == ("top1", "top5", "head1_top1", "head2_top1")
    expected = 100 * (scores[1].argmax(dim=1) == labels).double().view(6, 2).mean(dim=1)
    expected = expected.masked_fill(LABELS < 0, torch.nan)
    torch.testing.assert_close(hits["head1_top1"], expected, equal_nan=True)


def test_the_network_is_passed_through_once() -> None:
    method = small(HEADS).train()
    method(batch_of(), STEP)
    assert method.backbone.bn1.num_batches_tracked == 1


def test_each_head_has_its_own_learning_rate() -> None:
    state = TrainState.create(setup_of(HEADS, "method.head_lr_scale=3", "optim.warmup=0ep"))
    set_schedules(state.optimizer, state.config.optim, STEP, 256)
    rates = {id(p): group["lr"] for group in state.optimizer.param_groups for p in group["params"]}
    method: Any = state.method
    peak = rates[id(method.backbone.conv1.weight)]
    first, second = method.heads.classifiers
    assert rates[id(method.classifier.weight)] == pytest.approx(3 * peak)
    assert [rates[id(parameter)] / peak for parameter in first.parameters()] == pytest.approx([10] * 4)
    assert [rates[id(parameter)] for parameter in second.parameters()] == [0, 0]
    assert len(rates) == len(list(method.parameters()))


def test_heads_on_a_frozen_network_are_probes() -> None:
    method = small(HEADS, "backbone.freeze=all").train()
    before = {name: value.clone() for name, value in method.backbone.state_dict().items()}
    method(batch_of(), STEP).loss.backward()
    assert [name for name, p in method.named_parameters() if (p.grad is None) != name.startswith("backbone.")] == []
    assert all(torch.equal(value, before[name]) for name, value in method.backbone.state_dict().items())


def test_several_labels_an_image_reach_every_head() -> None:
    several = (torch.arange(36).view(6, 6) % 3) - 1
    method = small(HEADS)
    method(batch_of(several), STEP).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in method.heads.parameters())


def steps() -> Steps:
    return exact_steps("supervised", HEADS, "optim.lr=0.05", "train.epochs=1")


def test_two_ranks_give_the_gradient_of_one_process(run_ranks: RunRanks) -> None:
    alone, *ranks = steps(), *run_ranks(2, steps)
    for many in ranks:
        for own, expected in zip(many["grads"], alone["grads"], strict=True):
            assert own.keys() == expected.keys()
            assert any("heads.classifiers.1" in key for key in own)
            for key, grad in expected.items():
                torch.testing.assert_close(own[key], grad, rtol=1e-8, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["vit", "alexnet", "torchvision"])
def test_other_networks_have_heads_on_their_stages(network: str) -> None:
    words = {
        "vit": ("backbone.width=24", "backbone.depth=2", "backbone.heads=3", "backbone.patch_size=8",
                "backbone.image_size=16", "backbone.output=class_mean",
                "method.heads=[{stage: block1, pool: {kind: class}}, {stage: norm}]"),
        "alexnet": ("data.image_size=96", "backbone.output=mean", "method.heads=[{stage: conv3}]"),
        "torchvision": ("backbone.model=mobilenet_v3_small", "method.heads=[{stage: stage2, classifier: mlp}]"),
    }[network]  # fmt: skip
    short = ("data.limit=64", "train.batch_size=32", "data.lanes=4")
    run = prepare(load_config("digits/supervised", [f"backbone={network}", *words, *short]))
    method = TrainState.create(run.setup, classes=run.classes).method.eval()
    size = run.config.method.views.size
    images = torch.randn(2, 3, size, size)
    features, scores = method.heads(method.backbone, images)
    torch.testing.assert_close(features, method.backbone(images))
    assert [tuple(score.shape) for score in scores] == [(2, 10)] * len(method.config.heads)


def test_heads_are_settings_like_others() -> None:
    config = load_config("digits/supervised", [HEADS])
    assert config.method.heads[1].pool == Pool(kind="max", size=2)
    assert from_dict(to_dict(config)) == config
    check_expected_names(
        load_config("digits/supervised", [HEADS, "train.expect={head2_top1: [0, 100]}"]), Supervised, set(), ()
    )
    with pytest.raises(ConfigError, match="nothing will report 'head3_top1'; did you mean 'head"):
        check_expected_names(
            load_config("digits/supervised", [HEADS, "train.expect={head3_top1: [0, 1]}"]), Supervised, set(), ()
        )


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ("{stage: res5}", r"method.heads: no stage 'res5' in resnet; its stages: conv1, stem, res2, res3, avgpool"),
        ("{stage: res3, pool: {kernel: 20}}", r"method.heads: windows of side 20 do not fit a map of 8x8"),
        ("{stage: res3, pool: {kind: class}}", r"method.heads: a stage of shape \[1, 8, 8, 8\] has no class token"),
    ],
)
def test_heads_that_do_not_fit_are_refused_before_a_run(heads: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Supervised.check(setup_of(f"method.heads=[{heads}]"))
