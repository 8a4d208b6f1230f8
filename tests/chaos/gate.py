"""Components that the disturbed runs name by this file: they note what was done, and wait where a test wants it.

All of it goes through files in the folder `notes`, so that it works in any process of this machine.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.schema import CallbackConfig
from raysl.data.source import Rows, Split
from raysl.data.sources.digits import Digits
from raysl.hashing import Int64s
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

STEPS, GO, READS, HELD = "steps", "go", "reads", "held-"
LOOK_S = 0.02


class Gate(Callback):
    """Notes each step with its time in `steps`, and waits once at a step until `go` is there."""

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Where and how long.

        Args:
            notes: local folder.
            hold: step to wait at, on every rank; 0 for none.
            pace_s: seconds that every step takes longer.
            eat_gb: memory that it takes while it waits.
        """

        notes: str = ""
        hold: int = 0
        pace_s: float = 0.0
        eat_gb: float = 0.0

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        notes = Path(self.config.notes)
        if dist.is_main():
            with (notes / STEPS).open("a") as file:
                file.write(f"{time.time()} {step.index}\n")
        time.sleep(self.config.pace_s)
        if step.index == self.config.hold:
            wait(notes, self.config.eat_gb)


def wait(notes: Path, eat_gb: float) -> None:
    """Wait until `go` is there, and hold memory meanwhile."""
    eaten = []
    while not (notes / GO).exists():
        if len(eaten) < 10 * eat_gb:
            eaten.append(np.ones(100 << 20, np.uint8))  # slowly, so that Ray's monitor sees it grow
        time.sleep(LOOK_S)


class GatedDigits(Digits):
    """The digits; a data task that reads training images waits in a chosen read until `go` is there."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Digits.Config):
        """Where and when.

        Args:
            notes: local folder.
            hold_read: the read to wait in, counted over all processes from 1.
            eat_gb: memory that the task takes while it waits.
        """

        notes: str = ""
        hold_read: int = 1
        eat_gb: float = 0.0

    @override
    def split(self, name: str) -> Split | None:
        split = super().split(name)
        return _Gated(split, self.config) if split is not None and name == "train" else split


class _Gated(Split):
    def __init__(self, split: Split, config: Any) -> None:
        self.split, self.folder, self.hold_read = split, Path(config.notes), config.hold_read
        self.eat_gb = config.eat_gb
        self.classes, self.unit_sizes, self.fingerprint = split.classes, split.unit_sizes, split.fingerprint
        self.is_random_access = split.is_random_access
        self.inner = (split,)

    @override
    def read(self, index: Int64s) -> Rows:
        with (self.folder / READS).open("a") as file:
            file.write(".")
            file.flush()
            number = (self.folder / READS).stat().st_size
        if number >= self.hold_read and not (self.folder / GO).exists():
            (self.folder / f"{HELD}{os.getpid()}").touch()
            wait(self.folder, self.eat_gb)
        return self.split.read(index)

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.split.labels_of(index)  # the driver asks, and is not to wait
