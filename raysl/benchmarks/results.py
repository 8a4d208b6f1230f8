"""What benchmarks measured, kept one file each beside the run: `<run>/benchmarks/<checkpoint>/knn.json`.

A result is of one checkpoint, of one choice of settings, and of one set of images; another of these makes another
result. Images that are not the run's own have a folder of their own in there.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any

from raysl.benchmarks.fitting import MeasuredImages
from raysl.checkpoint import Checkpoint
from raysl.checkpoint_files import BACKBONE_FILE
from raysl.config.dump import plain as plain_settings
from raysl.config.schema import BenchmarkConfig
from raysl.report.contents import Score, parse_score, plain
from raysl.storage import Folder, outlast

FORMAT = 1
RESULTS_FOLDER = "benchmarks"
_NO_SETTINGS_OF_THE_MEASURE = ("name", "required")


@dataclass(frozen=True)
class Basis:
    """What a result belongs to.

    Args:
        step: updates of the checkpoint.
        weights: SHA-256 of its backbone's file; empty for checkpoints of older raysl.
        settings: of the benchmark.
        train, test: fingerprints of the images.
    """

    step: int
    weights: str
    settings: dict[str, Any]
    train: str
    test: str

    @classmethod
    def of(cls, loaded: Checkpoint, config: BenchmarkConfig, images: MeasuredImages) -> "Basis":
        """The basis of a measurement that is to be made."""
        assert images.test is not None
        weights = loaded.meta.get("files", {}).get(BACKBONE_FILE, {}).get("sha256", "")
        settings = plain_settings(config)
        del settings["required"]
        return cls(loaded.meta["step"], weights, settings, images.train.fingerprint, images.test.fingerprint)

    def is_of_the_same_images_and_weights(self, other: "Basis") -> bool:
        """Whether two results may stand on one page."""
        return (self.step, self.weights, self.train, self.test) == (other.step, other.weights, other.train, other.test)


@dataclass(frozen=True)
class Result:
    """What one benchmark, by its name, measured."""

    name: str
    basis: Basis
    scores: list[Score]


class Results:
    """The results that are kept in a folder.

    Args:
        folder: of one checkpoint and one set of images.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def load(self) -> dict[str, Result]:
        """All that were kept, by the name of the benchmark; what cannot be read counts as not measured."""
        names = [name for name in self.folder.names() if name.endswith(".json") and name != "report.json"]
        found = [_parse(self.folder.read(name).decode()) for name in names]
        return {result.name: result for result in found if result is not None}

    def keep(self, result: Result, dataset: str) -> None:
        """Write a result in place of the one of this name."""
        content = {
            "format": FORMAT,
            "benchmark": result.name,
            **asdict(result.basis),
            "dataset": dataset,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "scores": [asdict(score) for score in result.scores],
        }
        text = json.dumps(plain(content), indent=1, allow_nan=False) + "\n"
        outlast(self.folder.make)
        outlast(partial(self.folder.write, _file_name(result.name), text.encode()))


def _file_name(name: str) -> str:
    safe = re.sub(r"[^\w@-]", "-", name)
    return f"{safe}.json" if safe == name else f"{safe}-{_digest(name)}.json"


def _parse(text: str) -> Result | None:
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            return None
        basis = Basis(**{field.name: content[field.name] for field in fields(Basis)})
        return Result(content["benchmark"], basis, [parse_score(score) for score in content["scores"]])
    except (ValueError, KeyError, TypeError):
        return None


def label_of(key: str, config: BenchmarkConfig, own: BenchmarkConfig | None) -> tuple[str, str]:
    """Name of a benchmark's result, and what is special about it.

    Args:
        key: of the benchmark.
        config: its settings as they were given.
        own: those that the run has for it, or the default ones.

    Returns:
        The key, with a mark where the settings are not the run's, and those that differ: ("knn@1f3a2c", "k=[5]").
    """
    before = {} if own is None else plain_settings(own)
    changes = {
        name: value
        for name, value in plain_settings(config).items()
        if name not in _NO_SETTINGS_OF_THE_MEASURE and own is not None and before.get(name) != value
    }
    if not changes:
        return key, ""
    return f"{key}@{_digest(changes)}", ", ".join(f"{name}={value}" for name, value in changes.items())


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:6]
