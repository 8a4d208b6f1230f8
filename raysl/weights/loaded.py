"""A backbone, and what is known of where its weights are from."""

from dataclasses import dataclass, field
from typing import Any

from raysl.config.schema import RunConfig
from raysl.nn.backbones.backbone import Backbone
from raysl.weights.fill import Table


@dataclass(frozen=True)
class Loaded:
    """A backbone that was read, from a file or from a checkpoint.

    Args:
        backbone: in evaluation mode.
        config: its settings; `config.data` says what images it expects.
        origin: address of the file or the checkpoint, without credentials.
        told: in words, what it was.
        table: what became of the tensors of a file; None for a checkpoint, whose backbone is whole.
        facts: for `meta.json`: address, layout, hash, and how many tensors were taken.
    """

    backbone: Backbone
    config: RunConfig
    origin: str
    told: str
    table: Table | None = None
    facts: dict[str, Any] = field(default_factory=dict)
