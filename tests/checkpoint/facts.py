"""What `meta.json` says of every checkpoint, for tests that seal files without a run."""

from typing import Any


def facts(step: int) -> dict[str, Any]:
    data = {"num_samples": 64, "num_classes": 10, "eval_size": 8, "fingerprint": ""}
    return {"raysl": "0.1.0", "method": "simclr", "step": step, "epochs": 1, "data": data, "metrics": {}}
