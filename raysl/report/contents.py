"""What the report of a run is made of."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

ONLINE_KNN = re.compile(r"knn_k(\d+)_top1")
"""Names of the online kNN in what a run logs, by its k: `knn_k20_top1`."""
DEFAULTS = "default settings"
"""The protocol of a benchmark's defaults in words."""
BESIDE = ("untrained", "pixels", "deviation")
"""Ends of the names of numbers that stand beside one of the trained backbone."""
SATURATED = 97.0
"""Percent from which raw pixels leave no room to tell backbones apart."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number of one benchmark, beside those of the untrained network and of raw pixels."""

    benchmark: str
    """Name of the benchmark, such as `low_shot`."""
    metric: str
    """Name of the number inside it, such as `5_shot`."""
    trained: float
    """Of the pre-trained backbone."""
    untrained: float | None = None
    """Of the same backbone with its initial weights."""
    pixels: float | None = None
    """Of the raw pixels in place of features."""
    deviation: float | None = None
    """Standard deviation of `trained` over repeated draws."""
    interval: tuple[float, float] | None = None
    """Bounds of `trained` on other such test images, in 95 of 100 cases."""
    over_untrained: tuple[float, float] | None = None
    """95 % interval of `trained` minus `untrained`, see `raysl.benchmarks.metric.interval_of_difference`."""
    over_pixels: tuple[float, float] | None = None
    """95 % interval of `trained` minus `pixels`."""
    unit: str = "%"
    """Of all of them; may be empty."""
    title: str = ""
    """What people call the number; see `heading`."""
    is_headline: bool = True
    """Whether it is among the numbers that open the page."""
    is_lower_better: bool = False
    """Whether a smaller value is the better one."""
    note: str = ""
    """What a reader should know about this number."""
    protocol: str = ""
    """Settings behind the number that depart from the benchmark's defaults, without those in its name: numbers of one
    name and one protocol can be compared."""

    @property
    def is_saturated(self) -> bool:
        """Whether raw pixels are so good that this headline can hardly tell a good backbone from a poor one."""
        return self.is_headline and self.pixels is not None and self._is_nearly_whole(self.pixels)

    @property
    def tells_little(self) -> bool:
        """Whether raw pixels or an untrained network leave no room to tell backbones apart, headline or not."""
        return any(self._is_nearly_whole(rival) for rival in (self.pixels, self.untrained) if rival is not None)

    def _is_nearly_whole(self, value: float) -> bool:
        return self.unit == "%" and not self.is_lower_better and value >= SATURATED

    @property
    def heading(self) -> str:
        """The title, or one made of both names; behind it the protocol where it is not that of the run."""
        names = f"{self.benchmark}, {self.metric}".replace("_", " ")
        title = self.title or names[:1].upper() + names[1:]
        return title if self.is_own else f"{title} ({self.protocol or DEFAULTS})"

    @property
    def is_own(self) -> bool:
        """Whether it was measured by the settings that the run has for the benchmark."""
        return "@" not in self.benchmark


@dataclass(frozen=True, kw_only=True)
class EmbeddingSample:
    """Features of some images, for the map."""

    features: NDArray[np.float32]
    """[N, D]"""
    labels: NDArray[np.int64]
    """[N], -1 where unlabelled"""
    class_names: list[str]
    """Name of each label; may be empty."""
    thumbnails: Pixels
    """[N, H, W, 3]"""
    is_held_out: bool = True
    """Whether training has not seen the images."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Query images with the images that the backbone finds most similar, best first."""

    queries: Pixels
    """[Q, H, W, 3]"""
    query_labels: NDArray[np.int64]
    """[Q], -1 where unlabelled"""
    images: Pixels
    """[Q, K, H, W, 3]"""
    labels: NDArray[np.int64]
    """[Q, K], -1 where unlabelled"""
    similarities: NDArray[np.float32]
    """[Q, K], cosine"""


@dataclass(frozen=True, kw_only=True)
class Retrieved:
    """Query images with the results of a search, best first."""

    queries: Pixels
    """[Q, H, W, 3]"""
    query_labels: NDArray[np.int64]
    """[Q], -1 where unlabelled"""
    images: Pixels
    """[Q, K, H, W, 3]"""
    right: NDArray[np.bool_]
    """[Q, K]"""


@dataclass(frozen=True, kw_only=True)
class ViewSample:
    """Some training images and the views that the method sees of them."""

    originals: list[Pixels]
    """n images [H, W, 3] of any size"""
    views: dict[str, Pixels]
    """Group name -> [n, V, h, w, 3]"""


@dataclass(frozen=True, kw_only=True)
class PatchNetwork:
    """Pictures and codes of the patches of some images, from the features of one network."""

    title: str
    """Which network: `after training, step 120`."""
    colors: Pixels
    """[N, h, w, 3], the first three principal components of its features"""
    foreground: Pixels
    """[N, h, w, 3], the same of the foreground alone"""
    codes: NDArray[np.float32]
    """[N, h, w, K], vectors whose products are the cosines of the patches"""
    num_features: int
    """Width of the features; the codes are exact where they are as wide."""
    attention: NDArray[np.float32] | None = None
    """[N, heads, h, w], of the class token"""


@dataclass(frozen=True, kw_only=True)
class PatchSample:
    """Some images, and the pictures of their patches by network: first the one that training began with, then the
    trained one."""

    images: Pixels
    """[N, H, W, 3]"""
    networks: list[PatchNetwork]
    stage: str
    """The stage that the features are from."""
    is_held_out: bool = True
    """Whether training has not seen the images."""
    notes: list[str] = field(default_factory=list)
    """What is missing, and why."""


@dataclass(frozen=True, kw_only=True)
class Reconstructions:
    """Some images, what the method saw of them, and what it predicted at some steps."""

    images: Pixels
    """[N, H, W, 3]"""
    seen: Pixels
    """[N, H, W, 3]"""
    predicted: dict[int, Pixels]
    """Step -> [N, H, W, 3]"""
    is_held_out: bool = True
    """Whether training has not seen the images."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """All that the page of one run shows. Parts left empty or None do not appear on it."""

    name: str
    """Name of the run."""
    method: str
    backbone: str
    dataset: str
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved settings, nested."""
    config_docs: dict[str, str] | None = None
    """Dotted key -> its doc line."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions, device, CPUs."""
    times: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds; `total` is the whole."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Lines of metrics.jsonl: `step` and numbers."""
    scores: list[Score] = field(default_factory=list)
    """Results of the benchmarks."""
    notes: list[str] = field(default_factory=list)
    """What was not measured, and why."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures by the names of benchmarks; see `raysl.benchmarks.metric.Findings`."""
    embeddings: EmbeddingSample | None = None
    neighbours: Neighbours | None = None
    views: ViewSample | None = None
    retrieved: dict[str, Retrieved] | None = None
    """Results of searches, by the names of their benchmarks."""
    patches: PatchSample | None = None
    reconstructions: Reconstructions | None = None
    events: list[str] = field(default_factory=list)
    """What happened on the way, such as `resumed at step 120`."""
    parents: list[str] = field(default_factory=list)
    """Runs that its state was taken from, the newest first: `one at step 120 (epoch 3)`."""
    checkpoint: str = ""
    """URI of the last checkpoint."""
    step: int = 0
    """Updates of the weights at that checkpoint; 0 where it is not known."""
    measured_on: str = ""
    """A digest of the training and test images that the benchmarks had; empty where it is not known."""
    command: str = ""
    """What was typed to start the run."""
    finished: str = ""
    """When the report was first written, at the end of a run that measures itself; ISO 8601."""

    @property
    def metrics(self) -> dict[str, float]:
        """The scores, flat; see `flat_metrics`."""
        return flat_metrics(self.scores)


def by_benchmark(scores: Iterable[Score]) -> dict[str, list[Score]]:
    """Return the scores of each benchmark, in the order of their first appearance."""
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.benchmark, []).append(score)
    return groups


def flat_metrics(scores: Iterable[Score]) -> dict[str, float]:
    """Return scores by name: `knn/k20/top1` of the trained backbone; `/untrained`, `/pixels`, `/deviation` beside it.

    What was not measured has no key.
    """
    flat = {}
    for score in scores:
        name = f"{score.benchmark}/{score.metric}"
        flat[name] = float(score.trained)
        for column in BESIDE:
            value = getattr(score, column)
            if value is not None:
                flat[f"{name}/{column}"] = float(value)
    return flat


def online_knn(k: int) -> str:
    """Return the name under which a run logs the online kNN of k neighbours.

    >>> online_knn(20)
    'knn_k20_top1'
    """
    return f"knn_k{k}_top1"


def online_names(names: Iterable[str]) -> list[str]:
    """Return those of some names that are the online kNN's, by ascending k.

    >>> online_names(["loss", "knn_k200_top1", "knn_k20_top1"])
    ['knn_k20_top1', 'knn_k200_top1']
    """
    ks = {int(match[1]) for name in names if (match := ONLINE_KNN.fullmatch(name))}
    return [online_knn(k) for k in sorted(ks)]


def describe_online(numbers: Mapping[str, float]) -> list[str]:
    """Return the online kNN among some numbers for a line of progress, by ascending k.

    >>> describe_online({"loss": 2.5, "knn_k20_top1": 61.32})
    ['kNN (k = 20) 61.3 %']
    """
    return [f"kNN (k = {name[5:-5]}) {numbers[name]:.1f} %" for name in online_names(numbers)]


def intervals_and_units(scores: Iterable[Score]) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Return the intervals of the scores that have one, and the units of all, by the names of `flat_metrics`."""
    named = {f"{score.benchmark}/{score.metric}": score for score in scores}
    intervals = {name: score.interval for name, score in named.items() if score.interval is not None}
    return intervals, {name: score.unit for name, score in named.items()}


def is_beside(name: str) -> bool:
    """Return whether a number stands beside one of the trained backbone.

    >>> is_beside("knn/k20/top1"), is_beside("knn/k20/top1/pixels")
    (False, True)
    """
    return name.rpartition("/")[2] in BESIDE
