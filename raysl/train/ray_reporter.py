"""Checkpoints and metrics through Ray Train."""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from raysl import dist
from raysl.train.reporter import Save, checkpoint_name
from raysl.train.run_folder import RunFolder


class RayReporter:
    """Reports to the Ray Train controller; checkpoints are uploaded while training goes on.

    Args:
        folder: of the run, where the logs go.
        logs: local folder that logs are written to; None where that is the run's folder itself.
    """

    def __init__(self, folder: RunFolder, logs: Path | None) -> None:
        self.folder = folder
        self.logs = logs

    def restore(self) -> Path | None:
        """See `Reporter.restore`."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return None
        if self.folder.is_local:
            return Path(checkpoint.path)
        return Path(checkpoint.to_directory())

    def report(self, metrics: dict[str, Any], save: Save | None) -> None:
        """See `Reporter.report`."""
        checkpoint = None
        if save is not None and dist.is_main():
            draft = Path(tempfile.mkdtemp(prefix="raysl_checkpoint_"))
            save(draft)
            checkpoint = Checkpoint.from_directory(draft)
            self._upload_logs()
        ray.train.report(
            metrics,
            checkpoint=checkpoint,
            checkpoint_dir_name=None if save is None else checkpoint_name(int(metrics["step"])),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=None if save is None else True,
        )

    def _upload_logs(self) -> None:
        if self.logs is not None:
            for path in sorted(self.logs.iterdir()):
                self.folder.upload(path, path.name)


def local_logs(folder: RunFolder) -> Path | None:
    """A local folder for the logs of a remote run, with what was logged before; None for a local run.

    Only the main rank needs it.
    """
    if folder.is_local:
        return None
    logs = Path(tempfile.mkdtemp(prefix="raysl_logs_"))
    if folder.exists("metrics.jsonl"):
        (logs / "metrics.jsonl").write_bytes(folder.read("metrics.jsonl"))
    return logs
