"""Settings that vary and final numbers of a run, for the HPARAMS tab of TensorBoard."""

import json
import math
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raysl.redact import bare_tree
from raysl.storage.folder import Folder, outlast
from raysl.train.callbacks.event_file import EventFile

HPARAMS_FOLDER = "hparams"
HPARAMS_FILE = "events.out.tfevents.hparams"


def write_hparams(folder: Folder, settings: Mapping[str, Any], metrics: Mapping[str, float], step: int = 0) -> None:
    """Have TensorBoard show a run among others by its settings; called again, the new numbers replace the old ones.

    They are written into `hparams/` of the run's folder, apart from the numbers of training. What all runs have in
    common is left to TensorBoard to find: it would take the first run's word for it, and settings may exist for some
    runs alone.

    Args:
        folder: of the run.
        settings: by dotted key; truth values, numbers and texts as they are, all others as JSON, without credentials.
        metrics: numbers by name; what is not finite is left out.
        step: that they belong to.
    """
    from tensorboardX.summary import hparams, scalar

    shown = {key: _shown(value) for key, value in bare_tree(dict(settings)).items()}
    _, start, end = hparams(shown, {})
    numbers = [scalar(name, value) for name, value in metrics.items() if math.isfinite(value)]
    with tempfile.TemporaryDirectory(prefix="raysl_hparams_") as draft:
        file = EventFile(Path(draft), 0)
        file.add(step, start, *numbers, end)
        file.close()
        (written,) = Path(draft).iterdir()
        content = written.read_bytes()
    place = folder.child(HPARAMS_FOLDER)
    outlast(place.make)
    outlast(partial(place.write, HPARAMS_FILE, content))


def _shown(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
