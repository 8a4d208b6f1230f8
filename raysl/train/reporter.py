"""Where checkpoints and metrics go. Every rank calls a reporter at the same steps."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from raysl import dist

Save = Callable[[Path], None]


class Reporter(Protocol):
    """Takes what `fit` has to report."""

    def restore(self) -> Path | None:
        """Local folder of the newest checkpoint, or None at a first start."""

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """Record metrics; with `save`, have the main rank write a checkpoint and store it. A barrier of all ranks."""


class LocalReporter:
    """Keeps the newest checkpoints in a local folder; without a folder it keeps nothing.

    A checkpoint appears under its name when it is whole, so a kill leaves the one before it.
    """

    def __init__(self, folder: str | Path | None = None, keep: int = 2) -> None:
        self.folder = None if folder is None else Path(folder)
        self.keep = keep

    def restore(self) -> Path | None:
        """See `Reporter.restore`."""
        found = self._checkpoints()
        return found[-1] if found else None

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """See `Reporter.report`."""
        if save is not None and self.folder is not None and dist.is_main():
            target = self.folder / checkpoint_name(int(metrics["step"]))
            draft = self.folder / f"draft_{target.name}"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            save(draft)
            shutil.rmtree(target, ignore_errors=True)
            draft.rename(target)
            for old in self._checkpoints()[: -self.keep]:
                shutil.rmtree(old)
        dist.barrier()

    def _checkpoints(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("checkpoint_*"))


def checkpoint_name(step: int) -> str:
    """Name of the folder of the checkpoint at a step."""
    return f"checkpoint_{step:09d}"
