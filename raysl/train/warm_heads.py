"""Heads that train first, while a backbone that begins with weights waits (`train.warm_heads`)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.methods.method import Method
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.plan import TrainPlan
from raysl.schedule import Duration, Step


class WarmHeads:
    """Keeps the backbone as it is during the first steps, and lets all other parts of the method learn.

    In these steps no weight of the backbone changes, by its gradient or by weight decay. Batch normalisation in the
    backbone, and in a teacher's, normalises with its running statistics, which do not change either: heads learn on
    the features that the weights give when they are measured. The optimizer keeps no state of the backbone yet, so its
    averages begin with the first update. A teacher that was made of the same weights equals the student meanwhile.

    Nothing has to be stored: a step is one of the first by its number.
    """

    def __init__(self, method: Method, length: Duration | None) -> None:
        self.method = method
        self.length = length

    def is_waiting(self, step: Step) -> bool:
        """Whether the backbone does not learn in the update that begins at `step`."""
        return self.length is not None and not self.length.is_over(step)

    @contextmanager
    def holding(self, step: Step) -> Iterator[None]:
        """Hold running statistics in place during the update that begins at `step`, if the backbone waits."""
        held = [norm for norm in _norms(self.method) if norm.training] if self.is_waiting(step) else []
        for norm in held:
            norm.training = False
        try:
            yield
        finally:
            for norm in held:
                norm.training = True

    def drop_gradients(self, step: Step) -> None:
        """Drop the backbone's gradients if it waits: optimizers leave out parameters without one."""
        if self.is_waiting(step):
            for parameter in self.method.backbone.parameters():
                parameter.grad = None


def _norms(method: nn.Module) -> list[_BatchNorm]:
    backbones = [module for module in method.modules() if isinstance(module, Backbone)]
    norms = [module for backbone in backbones for module in backbone.modules() if isinstance(module, _BatchNorm)]
    return list(dict.fromkeys(norms))


def check_heads(method: Method) -> None:
    """Refuse a method of which nothing would train while its backbone waits."""
    inside = {id(parameter) for parameter in method.backbone.parameters()}
    if all(id(parameter) in inside for parameter in method.parameters() if parameter.requires_grad):
        raise ConfigError(
            f"train.warm_heads={method.setup.config.train.warm_heads} trains what is beside the backbone, and "
            f"method={method.setup.config.method.name} has no weights there; leave it out"
        )


def check_warm_heads(config: RunConfig) -> None:
    """Refuse a random backbone that waits."""
    train = config.train
    if train.warm_heads is None or config.method.weights is not None or config.backbone.is_pretrained:
        return
    raise ConfigError(
        f"train.warm_heads={train.warm_heads} lets a backbone wait that has learnt before, and this one begins at "
        "random; set method.weights=, or backbone.pretrained=true of a backbone that has published weights, or leave "
        "train.warm_heads out"
    )


def warm_heads_warning(plan: TrainPlan, length: Duration | None) -> str | None:
    """Return a warning if the backbone waits for the whole run; else None."""
    if length is None or length.is_over(plan.step(plan.total_steps - 1)):
        return None
    return f"train.warm_heads={length} lasts for all {plan.total_steps:,} updates: the backbone will not be trained"
