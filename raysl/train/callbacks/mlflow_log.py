"""Logged numbers in MLflow."""

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysl.config.schema import CallbackConfig
from raysl.redact import credential_scheme
from raysl.train.callbacks.tracking import Tracking
from raysl.train.file_names import TRACKING_DATABASE

ID_TAG = "raysl.id"
SERVER_VARIABLE = "MLFLOW_TRACKING_URI"
MOST_PARAMS, LONGEST_PARAM = 100, 500
"""Of one request, and of one value."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(Tracking):
    """Sends each logged line to MLflow, with the names that it has in TensorBoard, and the settings as parameters.

    Without a server, the run's folder gets a database `mlflow.db` (`mlflow ui --backend-store-uri
    sqlite:///PATH/mlflow.db` shows it). A resume goes on with the same run, found by its tag `raysl.id`; lines that it
    makes again after the restored step have equal numbers. User and password, or token, are those of
    `MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD` and `MLFLOW_TRACKING_TOKEN` on the main worker's node.

    Source: MLflow's client.
    """

    package = "mlflow"

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Where the run is filed."""

        server: str | None = None
        """URI of the server or database. Default: the variable `MLFLOW_TRACKING_URI`, or else `mlflow.db` in the run's
        folder."""
        experiment: str = "raysl"
        """Experiment, which is made if it is missing."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if credential_scheme(self.server or "") is not None:
                raise ValueError(
                    "server has a credential in it; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
                    f"{SERVER_VARIABLE} as a whole, in the environment of the workers"
                )

    @override
    def open(self, run_id: str, name: str, settings: dict[str, Any], folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for library in ("mlflow", "alembic"):  # they tell of each table of a new database
            logging.getLogger(library).setLevel(logging.WARNING)
        server = (
            self.config.server
            or os.environ.get(SERVER_VARIABLE)
            or f"sqlite:///{folder.absolute()}/{TRACKING_DATABASE}"
        )
        self.client = MlflowClient(tracking_uri=server)
        experiment = self._experiment()
        if runs := self.client.search_runs([experiment], f"tags.`{ID_TAG}` = '{run_id}'"):
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return  # parameters cannot be changed
        self.id = self.client.create_run(experiment, run_name=name, tags={ID_TAG: run_id}).info.run_id
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in settings.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[first : first + MOST_PARAMS])

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self.config.experiment
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self.client.create_experiment(name))
            except MlflowException:  # another run has made it meanwhile
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    @override
    def send(self, step: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, [Metric(name, value, now, step) for name, value in numbers.items()])

    @override
    def close(self, status: str) -> None:
        self.client.set_terminated(self.id, STATUS[status])
