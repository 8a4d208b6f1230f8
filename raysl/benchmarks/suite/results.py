"""What benchmarks measured, kept one file each beside the run: `<run>/benchmarks/<checkpoint>/knn.json`.

A result is of one checkpoint, of one choice of settings, and of one set of images; another of these makes another
result. Images that are not the run's own have a folder of their own in there.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any

from raysl.benchmarks.suite.code import code_of
from raysl.benchmarks.suite.fitting import MeasuredImages, benchmark_class
from raysl.benchmarks.suite.locations import content_of
from raysl.checkpoint import Checkpoint
from raysl.checkpoint_files import BACKBONE_FILE
from raysl.config.dump import plain as plain_settings
from raysl.config.schema import BenchmarkConfig
from raysl.report.contents import Score, parse_score, plain
from raysl.storage import Folder, outlast

log = logging.getLogger("raysl")

FORMAT = 2
MOST_SHOWN = 40
"""Characters of a setting in the title of a number; its result has all of it."""
RESULTS_FOLDER = "benchmarks"
_NO_SETTINGS_OF_THE_MEASURE = ("name", "required")


@dataclass(frozen=True)
class Basis:
    """What a result is a function of: where one of these differs, it is measured again.

    Args:
        step: updates of the checkpoint.
        weights: SHA-256 of its backbone's file; empty for checkpoints of older raysl.
        settings: of the benchmark.
        train, test: fingerprints of the images; empty of a benchmark that has images of its own, which its settings
            name.
        image: size, normalisation and so on of what the backbone is shown.
        seed: of all that is random.
        code: digest of the benchmark's code, see `raysl.benchmarks.suite.code`.
        places: digests of what its settings name besides the images, see `raysl.benchmarks.suite.locations`.
    """

    step: int
    weights: str
    settings: dict[str, Any]
    train: str
    test: str
    image: dict[str, Any]
    seed: int
    code: str
    places: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, loaded: Checkpoint, config: BenchmarkConfig, images: MeasuredImages) -> "Basis":
        """The basis of a measurement that is to be made."""
        settings = plain_settings(config)
        del settings["required"]
        kind = benchmark_class(config)
        is_own = kind.needs(config).own_images
        return cls(
            step=loaded.meta["step"],
            weights=weights_of(loaded),
            settings=plain(settings),
            train="" if is_own else images.train.fingerprint,
            test="" if is_own or images.test is None else images.test.fingerprint,
            image=plain({name: getattr(images.data, name) for name in _OF_AN_IMAGE}),
            seed=loaded.config.seed,
            code=code_of(kind),
            places=content_of(config),
        )

    def is_of(self, loaded: Checkpoint, images: MeasuredImages) -> bool:
        """Whether a result may stand on the page of a checkpoint and of images: those, or images of its own."""
        has_own = not self.train or self.settings.get("data") is not None
        test = "" if images.test is None else images.test.fingerprint
        is_same = (self.train, self.test) == (images.train.fingerprint, test)
        return (self.step, self.weights) == (loaded.meta["step"], weights_of(loaded)) and (has_own or is_same)

    def changes_from(self, other: "Basis") -> list[str]:
        """Names of what differs, for messages."""
        return [field.name for field in fields(Basis) if getattr(self, field.name) != getattr(other, field.name)]


_OF_AN_IMAGE = ("image_size", "eval_resize", "mean", "std", "channels", "background")


def weights_of(loaded: Checkpoint) -> str:
    """SHA-256 of a checkpoint's backbone; empty for checkpoints of older raysl."""
    digest: str = loaded.meta.get("files", {}).get(BACKBONE_FILE, {}).get("sha256", "")
    return digest


@dataclass(frozen=True)
class Result:
    """What one benchmark, by its name, measured.

    Args:
        name: of the benchmark, with a mark where its settings are special.
        basis: what it is of.
        scores: the numbers.
        figures: what the page draws of it, in the types of JSON, see `Findings.figures` and `figures.py`.
        seconds: that it took, all sides together, without the extraction of features.
    """

    name: str
    basis: Basis
    scores: list[Score]
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Results:
    """The results that are kept in a folder.

    Args:
        folder: of one checkpoint and one set of images.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def load(self) -> dict[str, Result]:
        """All that were kept, by the name of the benchmark; what cannot be read is said and counts as not measured."""
        names = [name for name in self.folder.names() if name.endswith(".json") and name != "report.json"]
        found = {name: _parse(self.folder.read(name)) for name in names}
        for name, result in found.items():
            if result is None:
                where = self.folder.uri_of(name)
                log.warning("%s is damaged, or of another raysl: what it held counts as not measured", where)
        return {result.name: result for result in found.values() if result is not None}

    def keep(self, result: Result, dataset: str, predictions: bytes = b"") -> None:
        """Write a result in place of the one of this name.

        Args:
            result: what was measured.
            dataset: name of the images.
            predictions: a Parquet file of them, written first; empty: there are none.
        """
        content = {
            "format": FORMAT,
            "benchmark": result.name,
            **asdict(result.basis),
            "dataset": dataset,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(result.seconds, 2),
            "scores": [asdict(score) for score in result.scores],
            "figures": result.figures,
        }
        text = json.dumps(plain(content), indent=1, allow_nan=False) + "\n"
        outlast(self.folder.make)
        if predictions:
            outlast(partial(self.folder.write, f"{_safe(result.name)}.predictions.parquet", predictions))
        outlast(partial(self.folder.write, f"{_safe(result.name)}.json", text.encode()))


def _safe(name: str) -> str:
    """The name of a benchmark as that of a file."""
    safe = re.sub(r"[^\w@-]", "-", name)
    return safe if safe == name else f"{safe}-{digest_of(name)}"


def _parse(file: bytes) -> Result | None:
    try:
        content = json.loads(file)
        if content["format"] != FORMAT:
            return None
        basis = Basis(**{field.name: content[field.name] for field in fields(Basis)})
        scores = [parse_score(score) for score in content["scores"]]
        return Result(content["benchmark"], basis, scores, content["figures"], content["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError):
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
    words = [word for name, value in changes.items() for word in _words(name, value, before.get(name))]
    return f"{key}@{digest_of(changes)}", ", ".join(words)


def _words(name: str, value: Any, before: Any) -> Iterator[str]:
    """A changed setting as it is written, `views.flip=0.0`, of a group of settings those in it that differ."""
    if isinstance(value, dict) and isinstance(before, dict):
        for inner in value:
            if inner not in before or value[inner] != before[inner]:
                yield from _words(f"{name}.{inner}", value[inner], before.get(inner))
    else:
        text = str(value)
        yield f"{name}={text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + '…'}"


def digest_of(tree: Any) -> str:
    """Six hexadecimal digits of a plain tree."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:6]
