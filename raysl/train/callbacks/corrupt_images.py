"""Broken images: counted and listed; too many of them stop the run."""

import json
from typing import Any

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.data.decode.corrupt import CorruptLog, Replaced
from raysl.train.callbacks.callback import Callback, Run, Step, StepOutput
from raysl.train.disk import Disk
from raysl.train.file_names import CORRUPT_FILE, append, count_broken
from raysl.train.late import Answer, is_late

SHOWN = 5


class CorruptImages(Callback):
    """Logs `corrupt_images`, the number of different images found broken, and lists them in `corrupt.jsonl`.

    All ranks get to know the images that any of them meets, and a restarted run those of its checkpoint.

    Args:
        corrupt: log of the broken images in this rank's batches.
        limit: number of images; with more broken ones the run stops and fails.
    """

    def __init__(self, corrupt: CorruptLog, disk: Disk, limit: int) -> None:
        self.corrupt = corrupt
        self.disk = disk
        self.limit = limit
        self.images: dict[str, None] = {}
        self.fingerprint = ""
        self.failure: str | None = None
        self.unread: Answer | None = None

    def on_train_start(self, run: Run) -> None:
        dataset = run.state.setup.data.fingerprint
        if self.fingerprint == dataset:  # rows of other images have other numbers
            self.corrupt.learn(self.images)
        self.fingerprint = dataset
        # images that became known after the restored step are met again
        if self.images and dist.is_main():
            content = "".join(map(_line, self.images))
            self.disk.write(lambda: (self.disk.logs / CORRUPT_FILE).write_text(content))

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        # ranks agree whether there are new images; on a GPU one step late, except where a line is logged
        is_log_due = run.is_log_due(step)
        if self.unread is not None:
            self._exchange()
        self.unread = run.agreement.ask(torch.full((1,), float(not self.corrupt.unreported), device=run.state.device))
        if is_log_due or not is_late(run.state.device):
            self._exchange()
        if not self.images:
            return
        run.metrics["corrupt_images"] = float(len(self.images))  # goes into the checkpoint of any step
        if is_log_due:
            run.log({"corrupt_images": float(len(self.images))})
        if len(self.images) > self.limit and self.failure is None:
            self.failure = too_many(list(self.images), self.limit)
            run.stop(self.failure)

    def _exchange(self) -> None:
        """List the images that are new on any rank."""
        assert self.unread is not None
        (nothing_new,) = self.unread.read()
        self.unread = None
        if not nothing_new:
            self._list([image for part in dist.gather_objects(self.corrupt.take_unreported()) for image in part])

    def _list(self, images: list[str]) -> None:
        new = [image for image in dict.fromkeys(images) if image not in self.images]
        if new and dist.is_main():
            if not self.images:
                self.disk.note(f"replaced a broken image, listed in {CORRUPT_FILE}: {new[0]}")
            content = "".join(map(_line, new)).encode()
            self.disk.write(lambda: append(self.disk.logs / CORRUPT_FILE, content))
        self.images |= dict.fromkeys(new)
        self.corrupt.learn(new)

    @override
    def state_dict(self) -> dict[str, Any]:
        replaced = [[str(image), image.row, image.other] for image in self.images if isinstance(image, Replaced)]
        return {"images": list(map(str, self.images)), "replaced": replaced, "fingerprint": self.fingerprint}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        replaced = {text: Replaced(text, row, other) for text, row, other in state.get("replaced", [])}
        self.images = {replaced.get(text, text): None for text in state.get("images", [])}
        self.fingerprint = state.get("fingerprint", "")


def too_many(images: list[str], limit: int) -> str:
    """Return the error of a run with more than `limit` broken images."""
    shown = "; ".join(images[:SHOWN]) + ("; ..." if len(images) > SHOWN else "")
    rest = f"all are listed in {CORRUPT_FILE} of the run's folder; a larger data.max_corrupt lets it go on"
    return f"{count_broken(len(images))}, data.max_corrupt allows {limit:,}: {shown}; {rest}"


def _line(image: str) -> str:
    return json.dumps({"image": image}) + "\n"
