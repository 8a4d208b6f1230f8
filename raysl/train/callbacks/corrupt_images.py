"""Broken images that a run has met: counted, listed, and a reason to stop when they are too many."""

import json
from pathlib import Path
from typing import Any

from raysl import dist
from raysl.data.corrupt import CorruptLog
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.folder.run_folder import CORRUPT_FILE, note_event

SHOWN = 5


class CorruptImages(Callback):
    """Logs `corrupt_images`, the number of different images found broken, and lists them in `corrupt.jsonl`.

    Args:
        found: what this rank's stream of batches has met.
        logs: local folder of the run's logs.
        limit: images; with more of them the run stops, and fails.
    """

    def __init__(self, found: CorruptLog, logs: Path, limit: int) -> None:
        self.found = found
        self.logs = logs
        self.limit = limit
        self.images: dict[str, None] = {}
        self.failure: str | None = None

    def on_train_start(self, run: Run) -> None:
        """Have the list hold what the restored state knows: what was found since is found again."""
        if self.images and dist.is_main():
            (self.logs / CORRUPT_FILE).write_text("".join(map(_line, self.images)))

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """Agree with the other ranks on what is new, at the steps that are logged."""
        if not (run.plan.log_every.is_due(step) or step.index == step.total):
            return
        untold = self.found.take_untold()
        if not dist.all_true(not untold, run.state.device):
            self._tell([image for part in dist.gather_objects(untold) for image in part])
        if self.images:
            run.log({"corrupt_images": float(len(self.images))})
        if len(self.images) > self.limit and self.failure is None:
            self.failure = too_many(list(self.images), self.limit)
            run.stop(self.failure)

    def _tell(self, images: list[str]) -> None:
        new = [image for image in dict.fromkeys(images) if image not in self.images]
        if new and dist.is_main():
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
    rest = f"all are listed in {CORRUPT_FILE} of the run's folder"
    return f"{len(images):,} images are broken, data.max_corrupt allows {limit:,}: {shown}; {rest}"


def _line(image: str) -> str:
    return json.dumps({"image": image}) + "\n"
