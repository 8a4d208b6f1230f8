"""Logged numbers in Weights & Biases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from raysl.config.schema import CallbackConfig
from raysl.train.callbacks.tracking import Tracking


class WandB(Tracking):
    """Sends each logged line to Weights & Biases, with the names that it has in TensorBoard, and the settings.

    Its files are in `wandb/` of the run's folder; `wandb sync` sends those of `mode=offline`. A resume goes on with the
    same run there; lines that it makes again after the restored step have equal numbers. The key is that of `wandb
    login` or of the variable `WANDB_API_KEY` on the main worker's node. Neither code nor the git remote is sent.

    Source: lightly-train's and stable-pretraining's logger of that name.
    """

    package = "wandb"

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Where the run is filed. What is not set here comes from the variables `WANDB_...`."""

        project: str = "raysl"
        """Project, which is made if it is missing."""
        entity: str | None = None
        """User or team. Default: that of the key."""
        group: str | None = None
        """Group of runs, such as the name of a sweep."""
        mode: Literal["online", "offline"] | None = None
        """Whether to send. Default: the variable `WANDB_MODE`, or else online."""

    @override
    def open(self, run_id: str, name: str, settings: dict[str, Any], folder: Path) -> None:
        import wandb

        quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        config = self.config
        self.run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            mode=config.mode,
            name=name,
            id=run_id,
            resume="allow",
            dir=folder,
            config=settings,
            settings=quiet,
        )
        self.run.define_metric("step")
        self.run.define_metric("train/*", step_metric="step")

    @override
    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log({**numbers, "step": step})

    @override
    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status == "failed"))
