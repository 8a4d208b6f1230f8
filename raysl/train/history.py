"""The logged lines of a run as a table."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysl.config.arguments import text_or_path
from raysl.errors import ConfigError
from raysl.storage.addresses import absolute
from raysl.storage.folder import Folder, without_waiting
from raysl.train.callbacks.logs import read_metrics

if TYPE_CHECKING:
    import pandas as pd


def load_history(run: str | os.PathLike[str]) -> "pd.DataFrame":
    """Return the lines that a run has logged so far, while it trains or afterwards.

    >>> load_history("runs/mine").columns.tolist()
    ['step', 'loss']

    Args:
        run: folder of the run, a path or a URI.

    Returns:
        A row for each logged step in order: `step` (int64) and every number that was ever logged (float64), NaN where a
        step lacks it.

    Raises:
        ConfigError: if no run has logged anything there, or the storage cannot be read.
    """
    folder = Folder(absolute(text_or_path(run, "run", "runs/quickstart")))
    with without_waiting():
        lines = read_metrics(folder)
    if not lines:
        raise ConfigError(f"nothing has been logged in {folder.uri!r}; give the folder of a run that has made a step")
    return frame(lines)


def frame(lines: Sequence[dict[str, float]]) -> "pd.DataFrame":
    """Return lines of a `metrics.jsonl` as a table; without lines it has the column `step` alone.

    >>> frame([{"step": 8, "loss": 2.5}, {"step": 16, "loss": 2.0, "lr": 0.1}])["loss"].tolist()
    [2.5, 2.0]
    """
    import pandas as pd

    names: dict[str, Any] = {"step": None} | {name: None for line in lines for name in line}
    kinds = {name: "int64" if name == "step" else "float64" for name in names}
    return pd.DataFrame(list(lines), columns=list(names)).astype(kinds)
