"""A method of a small backbone, one with a token, and a head."""

from typing import Any

import torch
from torch import Tensor, nn

from raysl.config.schema import OptimConfig
from raysl.data.batch import Batch
from raysl.methods.method import Method, StepOutput
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Step


class Tokens(Backbone):
    feature_dim = 4

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.token = nn.Parameter(torch.full((1, 1, 4), 0.5))
        self.layer = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.layer(images.mean((2, 3))) + self.token[0])
        return features

    def stages(self, images: Tensor, names: Any) -> dict[str, Tensor]:
        return {name: self(images) for name in names}

    def no_decay(self) -> set[str]:
        return {"token"}


class Probe(Method):
    """Its groups are `groups` where those are given: attributes of it, and the keys of their group."""

    def __init__(self, *groups: tuple[str, dict[str, Any]]) -> None:
        nn.Module.__init__(self)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone, self.head = Tokens(), nn.Linear(4, 2)
        self.groups = groups

    @classmethod
    def views(cls, config: Any) -> Any:
        raise AssertionError("no test asks for views")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        return StepOutput(self.head(self.backbone(batch.views["global"][:, 0])).square().mean())

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        if not self.groups:
            return super().param_groups(optim)
        return [{"params": list(self.get_submodule(name).parameters()), **keys} for name, keys in self.groups]

    def fill_gradients(self, seed: int) -> None:
        """Gradients that depend on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
