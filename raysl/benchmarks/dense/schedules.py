"""Schedules of the papers for detectors, and their optimizers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raysl.config.schema import OptimConfig
from raysl.optim.adam import AdamW
from raysl.optim.sgd import SGD
from raysl.schedule import Duration

USUAL = {"sgd": (0.02, 1e-4), "adamw": (1e-4, 0.1)}
"""Learning rate for a batch of 16, and weight decay: Detectron2's of SGD, ViTDet's of AdamW."""


@dataclass(frozen=True)
class Schedule:
    """The default schedule for a dataset, from the papers.

    VOC's is that of VISSL and MoCo for 2007 alone, COCO's the "1x" schedule of Detectron2.

    Args:
        iterations: updates.
        decay_at: where the learning rate falls to a tenth.
        warmup: linear rise of the learning rate.
    """

    iterations: int
    decay_at: tuple[Duration, ...]
    warmup: Duration
    checkpoint_every: Duration
    train_set: str
    test_set: str


SCHEDULES = {
    "voc": Schedule(12_500, (Duration(76, "%"),), Duration(100, "st"), Duration(500, "st"), "trainval", "test"),
    "coco": Schedule(
        90_000,
        (Duration(200 / 3, "%"), Duration(800 / 9, "%")),
        Duration(1000, "st"),
        Duration(2500, "st"),
        "train2017",
        "val2017",
    ),
}


def optim_of(
    kind: Literal["sgd", "adamw"],
    lr: float | None,
    weight_decay: float | None,
    decay_at: Sequence[Duration],
    warmup: Duration,
) -> OptimConfig:
    """Return settings of an optimizer whose learning rate warms up, stays, and falls in steps.

    Args:
        lr, weight_decay: default: `USUAL`.
        decay_at: points at which the learning rate falls to a tenth.
        warmup: linear rise from a thousandth of it.
    """
    usual_lr, usual_decay = USUAL[kind]
    settings: dict[str, Any] = {
        "lr": usual_lr if lr is None else lr,
        "lr_batch_size": 16,
        "schedule": "steps",
        "decay_at": tuple(decay_at),
        "warmup": warmup,
        "warmup_start": 1e-3,
        "weight_decay": usual_decay if weight_decay is None else weight_decay,
        "exclude_norm": True,
        "exclude_bias": False,
    }
    return SGD.Config(**settings) if kind == "sgd" else AdamW.Config(**settings)
