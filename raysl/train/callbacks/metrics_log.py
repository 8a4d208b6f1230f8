"""`metrics.jsonl`: one object a logged step."""

import json
from pathlib import Path

from raysl import distributed as dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class MetricsLog(Callback):
    """Appends each logged line to a local `metrics.jsonl`; lines behind the restored step are cut off at a start."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = self.path.read_bytes() if self.path.exists() else b""
            kept = [line for line in parse_metrics(before) if line["step"] <= run.state.step]
            draft = self.path.with_name(f"{self.path.name}.part")  # a full disk leaves what was there
            draft.write_text("".join(json.dumps(line) + "\n" for line in kept))
            draft.rename(self.path)
            for line in kept:
                run.metrics.update({name: value for name, value in line.items() if name != "step"})

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if dist.is_main():
            with self.path.open("a") as file:
                place = {"step": step.index, "epoch": step.index / step.epoch_len}
                file.write(json.dumps(place | line) + "\n")


def parse_metrics(content: bytes) -> list[dict[str, float]]:
    """The lines of a `metrics.jsonl`; one that a kill left unfinished is left out."""
    lines = []
    for text in content.splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines
