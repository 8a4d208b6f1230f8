"""Any optimizer of torch by its name: `optim=torch optim.optimizer=NAdam 'optim.options={momentum_decay: 0.004}'`."""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch.optim import Optimizer

from raysl.config.schema import OptimConfig

UNFIT = ("LBFGS", "SparseAdam")
"""Optimizers that evaluate the loss several times per step, or need sparse gradients."""
LAYERWISE = ("lars", "larc")
OURS = ("params", "lr", "weight_decay")
"""Arguments with a setting of their own."""


class AnyTorch(Optimizer):
    """Creates the optimizer of `torch.optim` that the settings name.

    >>> parameters = [{"params": [torch.nn.Parameter(torch.zeros(2))]}]
    >>> type(AnyTorch(parameters, AnyTorch.Config(optimizer="RAdam"))).__name__
    'RAdam'
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """The name of an optimizer, and its options."""

        name: str = "torch"
        optimizer: str = "Adam"
        """Name of a class of `torch.optim`, such as RMSprop, RAdam, NAdam, Adamax, Adagrad or ASGD."""
        options: dict[str, Any] = field(default_factory=dict)
        """Its arguments by name, except learning rate and weight decay."""

        def __post_init__(self) -> None:
            kind = optimizer_class(self.optimizer, self.options)
            if self.options:
                _try(kind, self.options)

    def __new__(cls, params: Iterable[dict[str, Any]], config: Config) -> Any:
        kind = optimizer_class(config.optimizer, config.options)
        arguments: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, **config.options}
        takes = inspect.signature(kind).parameters
        return kind(list(params), **{name: value for name, value in arguments.items() if name in takes})


def optimizer_class(name: str, options: dict[str, Any]) -> type[Optimizer]:
    """Return the class of `torch.optim` with this name.

    >>> optimizer_class("NAdam", {"momentum_decay": 0.004}).__name__
    'NAdam'
    """
    known = [
        known_name
        for known_name, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, Optimizer)
        and value is not Optimizer
        and known_name not in UNFIT
    ]
    if name.lower() in LAYERWISE:
        raise ValueError(
            f"{name} is raysl's own and scales only the updates of SGD; set optim={name.lower()}, or another optimizer"
        )
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        why = "needs another training loop" if name in UNFIT else "is not an optimizer of torch.optim"
        raise ValueError(f"optimizer {name} {why}; {hint}")
    kind: type[Optimizer] = getattr(torch.optim, name)
    takes = [option for option in inspect.signature(kind).parameters if option not in OURS]
    for option in options:
        if option in OURS:
            raise ValueError(f"options has {option}, which is a setting of its own: optim.{option}")
        if option not in takes:
            raise ValueError(f"options has {option!r}, and {name} takes {', '.join(takes)}")
    return kind


def _try(kind: type[Any], options: dict[str, Any]) -> None:
    """Take one step with the optimizer, so that wrong options are refused before a run begins."""
    try:
        optimizer = kind([torch.nn.Parameter(torch.zeros(2, 2))], **options)
        optimizer.param_groups[0]["params"][0].grad = torch.zeros(2, 2)
        optimizer.step()
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"options={options} do not fit {kind.__name__}: {error}") from error
