"""Optimizers that are torch's own, by their names."""

from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.optim.adam import Adam
from raysl.optim.any_torch import UNFIT, AnyTorch
from raysl.optim.build import build_optimizer, set_schedules
from raysl.schedule import Step
from tests.optim.probe import Probe


def steps_of(method: Probe, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    for seed in range(3):
        method.fill_gradients(seed)
        optimizer.step()
    return [parameter.detach() for parameter in method.parameters()]


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (Adam.Config(lr=0.1, weight_decay=0.5, exclude_norm_and_bias=False), torch.optim.Adam),
        (
            AnyTorch.Config(optimizer="NAdam", lr=0.1, weight_decay=0.5, exclude_norm_and_bias=False),
            torch.optim.NAdam,
        ),
        (AnyTorch.Config(optimizer="Rprop", lr=0.1, exclude_norm_and_bias=False), torch.optim.Rprop),
    ],
)
def test_steps_are_those_of_torchs_optimizer(config: Any, reference: type[Any]) -> None:
    method, other = Probe(), Probe()
    optimizer = build_optimizer(method, config)
    assert isinstance(optimizer, reference)
    decay = {} if reference is torch.optim.Rprop else {"weight_decay": 0.5}
    token = [{"params": [other.backbone.token], **(decay and {"weight_decay": 0.0})}]
    rest = [parameter for parameter in other.parameters() if parameter is not other.backbone.token]
    expected = steps_of(other, reference([{"params": rest}, *token], lr=0.1, **decay))
    for found, value in zip(steps_of(method, optimizer), expected, strict=True):
        torch.testing.assert_close(found, value)


def test_options_and_schedules_reach_it() -> None:
    words = ["optim=torch", "optim.optimizer=RMSprop", "optim.options={alpha: 0.9, centered: true}", "optim.lr=0.5"]
    config = load_config("quickstart", [*words, "optim.lr_scaling=none", "optim.warmup=0ep"])
    optimizer = build_optimizer(Probe(), config.optim)
    assert isinstance(optimizer, torch.optim.RMSprop)
    set_schedules(optimizer, config.optim, Step(5, 10, 5), batch_size=64)
    assert {(group["alpha"], group["centered"]) for group in optimizer.param_groups} == {(0.9, True)}
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25] * len(optimizer.param_groups))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.optimizer=RMSpro"], "optimizer RMSpro is not an optimizer of torch.optim; did you mean RMSprop"),
        (["optim.optimizer=Optimizer"], "is not an optimizer of torch.optim"),
        (["optim.optimizer=lr_scheduler"], "is not an optimizer of torch.optim"),
        (["optim.options={betta: 1}"], "options has 'betta', and Adam takes betas, eps"),
        (["optim.options={lr: 1}"], "options has lr, which is a setting of its own: optim.lr"),
        (["optim.options={betas: [0.9]}"], "options={'betas': .* do not fit Adam: list index out of range"),
        (["optim.options={betas: [0.9, 2]}"], "do not fit Adam: Invalid beta parameter at index 1"),
        (["optim.optimizer=SGD", "optim.options={nesterov: true}"], "do not fit SGD: Nesterov momentum requires"),
        (["optim.optimizer=LARC"], "optim: LARC is raysl's own and scales only the updates of SGD; set optim=larc"),
        *(([f"optim.optimizer={name}"], f"optimizer {name} needs another training loop") for name in UNFIT),
    ],
)
def test_other_names_and_options_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart", ["optim=torch", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "optim=larc optim.betas=[0.9,0.95]",
            "optim.betas: optim=larc has no such setting, adam, adamw and lamb have; .*lamb$",
        ),
        (
            "optim=lars optim.eps=1e-8",
            "optim.eps: optim=lars has no such setting, adam, adamw, lamb and larc have; leave it",
        ),
        ("optim=adamw optim.momentum=0.9", "optim.momentum: optim=adamw has no such .* or set optim=sgd"),
        ("optim={name: lars, betas: [0.9, 0.95]}", "optim.betas: optim=lars has no such setting"),
        ("optim.beta=1", "optim.beta: no such setting; did you mean"),
        ("optim=larc optim.nonsense=1", "optim.nonsense: no such setting; optim has name, lr"),
    ],
)
def test_settings_of_another_optimizer_are_told_to_be_its(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart", [words] if "{" in words else words.split())
