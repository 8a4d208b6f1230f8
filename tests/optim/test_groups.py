from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raysl.config.schema import OptimConfig
from raysl.optim.adam import AdamW
from raysl.optim.build import build_optimizer, lr_at, set_schedules
from raysl.optim.groups import complete_groups, split_groups
from raysl.optim.lamb import LAMB
from raysl.optim.larc import LARC
from raysl.optim.lars import LARS
from raysl.optim.sgd import SGD
from raysl.schedule import Duration, Step
from raysl.train import LocalReporter, fit
from tests.optim.probe import Probe
from tests.train.problem import batches, problem

COURSE: dict[str, Any] = {"lr": 1.0, "lr_scaling": "none", "warmup": Duration.parse("0ep")}
DECAY: dict[str, Any] = {"weight_decay": 0.04, "weight_decay_end": 0.4}
SCALED = (
    ("backbone", {"lr_scale": 0.25, "weight_decay_scale": 0.5}),
    ("head", {"weight_decay": 0.7, "layer_scaling": False}),
)


def names(method: Probe, group: dict[str, Any]) -> list[str]:
    wanted = {id(parameter) for parameter in group["params"]}
    return [name for name, parameter in method.named_parameters() if id(parameter) in wanted]


def test_biases_normalisation_and_tokens_are_neither_decayed_nor_scaled() -> None:
    method = Probe()
    method.head.weight.requires_grad_(False)
    decaying, excluded = split_groups(method, SGD.Config())
    assert names(method, decaying) == ["backbone.layer.weight"]
    assert (decaying["lr_scale"], decaying["weight_decay_scale"], decaying["layer_scaling"]) == (1.0, 1.0, True)
    assert names(method, excluded) == [
        "backbone.token", "backbone.layer.bias", "backbone.norm.weight", "backbone.norm.bias", "head.bias"
    ]  # fmt: skip
    assert (excluded["lr_scale"], excluded["weight_decay_scale"], excluded["layer_scaling"]) == (1.0, 0.0, False)


def test_tokens_do_not_decay_even_where_biases_do() -> None:
    method = Probe()
    decaying, excluded = split_groups(method, SGD.Config(exclude_norm_and_bias=False))
    assert names(method, excluded) == ["backbone.token"]
    assert len(decaying["params"]) == len(list(method.parameters())) - 1


def test_named_tokens_decay_wherever_they_are() -> None:
    method = Probe()
    method.backbone.cls_token, method.head.mask_token = method.backbone.token, nn.Parameter(torch.zeros(4))
    del method.backbone.token
    method.backbone.no_decay = lambda: {"cls_token"}  # type: ignore[method-assign]

    def decaying(*tokens: Any) -> set[str]:
        return set(names(method, split_groups(method, SGD.Config(decay_tokens=tokens))[0]))

    weights = {"backbone.layer.weight", "head.weight"}
    assert decaying() == weights
    assert decaying("cls_token", "pos_embed") == {*weights, "backbone.cls_token"}
    assert decaying("cls_token", "mask_token") == {*weights, "backbone.cls_token", "head.mask_token"}


def test_one_group_where_nothing_is_excluded() -> None:
    method = Probe()
    method.backbone.token.requires_grad_(False)
    (group,) = split_groups(method, SGD.Config(exclude_norm_and_bias=False))
    assert group["layer_scaling"] is True


def test_a_backbone_that_names_what_it_has_not_is_told() -> None:
    method = Probe()
    method.backbone.pos = method.backbone.token
    del method.backbone.token
    with pytest.raises(ValueError, match=r"Tokens\.no_decay\(\) names 'token', which is not a parameter"):
        split_groups(method, SGD.Config())


def test_groups_are_completed_with_what_they_leave_out() -> None:
    made = complete_groups([{"params": []}, {"params": [], "weight_decay": 0.7}], SGD.Config(weight_decay=0.1))
    assert [group["lr_scale"] for group in made] == [1.0, 1.0]
    assert [group["layer_scaling"] for group in made] == [True, True]
    assert [group["weight_decay_scale"] for group in made] == [1.0, None]
    assert [group["weight_decay"] for group in made] == [0.1, 0.7]
    with pytest.raises(ValueError, match="both weight_decay and weight_decay_scale"):
        complete_groups([{"params": [], "weight_decay": 0.7, "weight_decay_scale": 1.0}], SGD.Config())


@pytest.mark.parametrize("config", [SGD.Config, LARS.Config, LAMB.Config, LARC.Config, AdamW.Config])
def test_scales_of_groups_stay_through_steps(config: type[OptimConfig]) -> None:
    optim = config(**COURSE, **DECAY)
    method = Probe(*SCALED)
    optimizer = build_optimizer(method, optim)
    for index, lr, decay in [(0, 1.0, 0.04), (10, 0.5, 0.22), (20, 0.0, 0.4)]:
        set_schedules(optimizer, optim, Step(index, 20, 5), batch_size=64)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25 * lr, lr], abs=1e-12)
        assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx([0.5 * decay, 0.7])
        method.fill_gradients(index)
        optimizer.step()


def test_a_group_may_keep_the_peak_from_the_first_step_of_a_warm_up_on() -> None:
    optim = SGD.Config(lr=0.5, warmup=Duration.parse("10st"))
    optimizer = build_optimizer(Probe(("backbone", {}), ("head", {"is_lr_constant": True, "lr_scale": 0.1})), optim)
    for index in (0, 10, 15, 20):
        step = Step(index, 20, 5)
        set_schedules(optimizer, optim, step, batch_size=512)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([lr_at(optim, step, 512), 0.1])
    assert rates[0] == pytest.approx(0.0)


def test_what_is_excluded_stays_without_decay_as_that_grows() -> None:
    optim = AdamW.Config(**COURSE, **DECAY)
    optimizer = build_optimizer(Probe(), optim)
    set_schedules(optimizer, optim, Step(20, 20, 5), batch_size=64)
    assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx([0.4, 0.0])


@pytest.mark.parametrize("config", [SGD.Config, LARS.Config, LAMB.Config, LARC.Config, AdamW.Config])
def test_a_state_without_scales_takes_those_of_the_method(config: type[OptimConfig]) -> None:
    optim = config(**COURSE, **DECAY)
    whole, again = Probe(*SCALED), Probe(*SCALED)
    first, second = build_optimizer(whole, optim), build_optimizer(again, optim)

    def update(method: Probe, optimizer: torch.optim.Optimizer, index: int) -> None:
        method.fill_gradients(index)
        set_schedules(optimizer, optim, Step(index, 20, 5), batch_size=64)
        optimizer.step()

    update(whole, first, 0)
    saved = deepcopy(first.state_dict())
    for group in saved["param_groups"]:
        del group["lr_scale"], group["is_lr_constant"], group["weight_decay_scale"], group["layer_scaling"]
        group["kept"] = "by the optimizer"
    second.load_state_dict(saved)
    again.load_state_dict(whole.state_dict())
    assert [group["lr_scale"] for group in second.param_groups] == [0.25, 1.0]
    assert [group["weight_decay_scale"] for group in second.param_groups] == [0.5, None]
    assert [group["layer_scaling"] for group in second.param_groups] == [True, False]
    assert [group["kept"] for group in second.param_groups] == ["by the optimizer"] * 2
    update(whole, first, 1)
    update(again, second, 1)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_a_state_of_other_groups_is_refused() -> None:
    saved = build_optimizer(Probe(), SGD.Config()).state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        build_optimizer(Probe(("head", {})), SGD.Config()).load_state_dict(saved)


@pytest.mark.thorough
def test_the_loop_scales_groups_and_logs_the_rate_of_the_schedule(tmp_path: Path) -> None:
    state, plan = problem("train.log_every=1st", "optim.weight_decay=0.1", "optim.weight_decay_end=0.2")
    still, moving = state.optimizer.param_groups
    still["lr_scale"], moving["lr_scale"] = 0.0, 0.5
    before = [parameter.detach().clone() for parameter in still["params"]]
    metrics = fit(state, state.method, plan, batches(plan), reporter=LocalReporter(tmp_path))
    last = lr_at(plan.optim, plan.step(plan.total_steps - 1), plan.batch_size)
    assert all(torch.equal(parameter, old) for parameter, old in zip(still["params"], before, strict=True))
    assert (metrics["lr"], still["lr"], moving["lr"]) == (last, 0.0, 0.5 * last)
    assert (0.19 < still["weight_decay"] < 0.2, moving["weight_decay"]) == (True, 0.0)
