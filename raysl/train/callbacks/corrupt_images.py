"""Broken images that a run has met: counted, listed, and a reason to stop when they are too many."""

import json
from pathlib import Path
from typing import Any

import torch

from raysl import distributed as dist
from raysl.data.decode.images import CorruptLog
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.disk import Disk
from raysl.train.files import CORRUPT_FILE, note_event
from raysl.train.late import Late, is_late

SHOWN = 5


class CorruptImages(Callback):
    """Logs `corrupt_images`, the number of different images found broken, and lists them in `corrupt.jsonl`.

    Args:
        found: what this rank's stream of batches has met.
        logs: local folder of the run's logs.
        limit: images; with more of them the run stops, and fails.
        disk: is told where it is full.
    """

    def __init__(self, found: CorruptLog, logs: Path, limit: int, disk: Disk | None = None) -> None:
        self.found = found
        self.logs = logs
        self.limit = limit
        self.images: dict[str, None] = {}
        self.failure: str | None = None
        self.disk = disk or Disk()
        self.unread: Late | None = None

    def on_train_start(self, run: Run) -> None:
        """Have the list hold what the restored state knows: what was found since is found again."""
        if self.images and dist.is_main():
            with self.disk.writing(self.logs):
                (self.logs / CORRUPT_FILE).write_text("".join(map(_line, self.images)))

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """Agree with the other ranks on what is new; on a GPU one step late, but for the steps that are logged."""
        is_log_due = run.plan.log_every.is_due(step) or step.index == step.total
        if self.unread is not None:
            self._meet()
        self.unread = Late(dist.all_least(torch.full((1,), float(not self.found.unreported), device=run.state.device)))
        if is_log_due or not is_late(run.state.device):
            self._meet()
        if not self.images:
            return
        run.metrics["corrupt_images"] = float(len(self.images))  # goes into the checkpoint of any step
        if is_log_due:
            run.log({"corrupt_images": float(len(self.images))})
        if len(self.images) > self.limit and self.failure is None:
            self.failure = too_many(list(self.images), self.limit)
            run.stop(self.failure)

    def _meet(self) -> None:
        """Tell of the images that some rank has found."""
        assert self.unread is not None
        (nothing_new,) = self.unread.read()
        self.unread = None
        if not nothing_new:
            self._tell([image for part in dist.gather_objects(self.found.take_unreported()) for image in part])

    def _tell(self, images: list[str]) -> None:
        new = [image for image in dict.fromkeys(images) if image not in self.images]
        if new and dist.is_main():
            with self.disk.writing(self.logs):
                if not self.images:
                    note_event(self.logs, f"replaced a broken image, listed in {CORRUPT_FILE}: {new[0]}")
                with (self.logs / CORRUPT_FILE).open("a") as file:
                    file.writelines(map(_line, new))
        self.images |= dict.fromkeys(new)

    def state_dict(self) -> dict[str, Any]:
        """See `Callback.state_dict`."""
        return {"images": list(self.images)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Callback.load_state_dict`."""
        self.images = dict.fromkeys(state.get("images", []))


def too_many(images: list[str], limit: int) -> str:
    """What a run with more than `limit` broken images fails with."""
    shown = "; ".join(images[:SHOWN]) + ("; ..." if len(images) > SHOWN else "")
    rest = f"all are listed in {CORRUPT_FILE} of the run's folder; a larger data.max_corrupt lets it go on"
    return f"{len(images):,} images are broken, data.max_corrupt allows {limit:,}: {shown}; {rest}"


def _line(image: str) -> str:
    return json.dumps({"image": image}) + "\n"
