"""Find the benchmarks that the images allow, on the driver, before anything is trained."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from raysl.benchmarks.benchmark import Benchmark, ConfigError, Labelled, Needs, missing_negatives
from raysl.benchmarks.online_knn import OnlineKNN, online_vote
from raysl.benchmarks.suite.settings import other_data
from raysl.benchmarks.suite.suites import with_hint
from raysl.components import resolve
from raysl.config.ranges import Interpolation
from raysl.config.schema import BenchmarkConfig, DataConfig, RunConfig
from raysl.data.source import Split, make_source
from raysl.report.contents import online_knn
from raysl.train.prepare import Measurements


@dataclass(frozen=True)
class Fitting:
    """Benchmarks fitted to the images.

    Args:
        settings: settings of the benchmarks that can be measured, by name.
        images: images of these benchmarks, by name.
        left_out: a line for each benchmark, or part of one, that cannot be measured, with the reason.
        requested: settings of all requested benchmarks, before they were fitted.
    """

    settings: dict[str, BenchmarkConfig]
    images: "dict[str, MeasuredImages]"
    left_out: list[str]
    requested: Mapping[str, BenchmarkConfig]

    def metrics(self) -> set[str]:
        """Return the names of the numbers in the report: `knn/k20/top1`, `knn/k20/top1/untrained` and so on."""
        names = [
            f"{key}/{metric}"
            for key, config in self.settings.items()
            for metric in benchmark_class(config).metrics(config, self.images[key].num_classes)
        ]
        return {f"{name}{side}" for name in names for side in ("", "/untrained", "/pixels", "/deviation")}

    @property
    def reasons(self) -> str:
        """The reasons for which benchmarks were left out, each once."""
        return "; ".join(dict.fromkeys(line.partition(_LEFT_OUT)[2] or line for line in self.left_out))


class MeasuredImages:
    """The images of a dataset, checked for what benchmarks need."""

    def __init__(self, data: DataConfig, train: Split, test: Split | None) -> None:
        self.data = data
        self.train = train
        self.test = test
        self._others: dict[str, MeasuredImages] = {}
        self._resizes: dict[Interpolation, MeasuredImages] = {}
        self._states: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, data: DataConfig) -> "MeasuredImages":
        """Open the training and test images that settings name."""
        source = make_source(data)
        return cls(data, source.required("train"), source.optional("test"))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.train.classes)

    @property
    def splits(self) -> dict[str, Split]:
        """The existing splits by name."""
        return {"train": self.train} | ({} if self.test is None else {"test": self.test})

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of the split `train` or `test`, read once, see `Split.state`."""
        if name not in self._states:
            self._states[name] = self.splits[name].state()
        return self._states[name]

    def lacks(self, needs: Needs) -> str:
        """Return the reason for which a benchmark with these needs cannot be measured; empty if it can."""
        name = self.data.name
        if needs.own_images:
            return ""
        if needs.labels != "none" and not self.train.classes:
            return f"the images of {name!r} have no labels"
        if needs.labels == "one" and self.train.is_multilabel:
            return f"the images of {name!r} have several labels each, and it needs one of each"
        if needs.test and self.test is None:
            return f"the dataset {name!r} has no test images{_held_out_hint(self.data)}"
        if needs.labels == "none":
            return ""
        if self.num_classes == 1 and not self.train.is_multilabel:
            return f"all images of {name!r} are of one class, {self.train.classes[0]!r}"
        for split, labels in (("training", self._train_labels), ("test", self._test_labels if needs.test else None)):
            if labels is None:
                continue
            if labels.ndim == 2:
                reason = missing_negatives(labels, split, self.train.classes)
            else:
                num = int((labels < 0).sum())
                reason = f"{num:,} of the {len(labels):,} {split} images of {name!r} have no label" if num else ""
            if reason:
                return reason
        return ""

    @cached_property
    def labelled(self) -> Labelled:
        """Facts about the labels."""
        labels, counts = self._train_labels, None
        if labels is not None and self.train.is_multilabel:
            counts = (labels == 1).sum(axis=0)
        elif labels is not None:
            counts = np.bincount(labels[labels >= 0], minlength=self.num_classes)
        train, num_test = self.train, 0 if self.test is None else self.test.num_samples
        facts = train.num_samples, num_test, train.classes, counts, train.is_multilabel, train.num_validation
        return Labelled(*facts)

    @cached_property
    def _train_labels(self) -> np.ndarray | None:
        return _labels_of(self.train)

    @cached_property
    def _test_labels(self) -> np.ndarray | None:
        return None if self.test is None else _labels_of(self.test)

    def with_data(self, data: str | Mapping[str, Any] | None) -> "MeasuredImages":
        """Return the images that a benchmark is measured on: those that its setting `data` names, else these."""
        if data is None:
            return self
        key = json.dumps(data, sort_keys=True)
        if key not in self._others:
            self._others[key] = MeasuredImages.of(other_data(self.data, data))
        return self._others[key]

    def resized(self, interpolation: Interpolation) -> "MeasuredImages":
        """Return the same images, resized with another interpolation."""
        if interpolation == self.data.eval_interpolation:
            return self
        if interpolation not in self._resizes:
            data = replace(self.data, eval_interpolation=interpolation)
            self._resizes[interpolation] = MeasuredImages(data, self.train, self.test)
            self._resizes[interpolation]._states = self._states
        return self._resizes[interpolation]

    def fit(
        self, wanted: Mapping[str, BenchmarkConfig], in_run: bool = True, files: Mapping[str, str] | None = None
    ) -> Fitting:
        """Fit benchmarks to these images.

        Args:
            in_run: whether the settings of a run name the benchmarks, and not a command; for the advice in messages.
            files: files that the dataset of a benchmark needs and their place, in words, by key.
        """
        fitting = Fitting({}, {}, [], wanted)
        refused: dict[str, ConfigError] = {}
        for key, config in wanted.items():
            benchmark_class(config)(config)  # refuses settings that are wrong for any images
            try:
                self._fit_one(key, config, fitting, (files or {}).get(key, ""))
            except ConfigError as error:
                if config.required:
                    refused[key] = error
                else:
                    fitting.left_out.append(_left_out_line([key], str(error)))
        if refused:
            raise ConfigError("\n".join(_refusals(refused, list(fitting.settings), in_run)))
        return fitting

    def _fit_one(self, key: str, config: BenchmarkConfig, fitting: Fitting, files: str) -> None:
        kind = benchmark_class(config)
        needs = kind.needs(config)
        try:
            images = self.with_data(config.data)
        except ConfigError as error:
            raise ConfigError(with_hint(str(error), files)) from error
        if reason := images.lacks(needs):
            raise ConfigError(reason)
        known = Labelled(0, 0, (), None) if needs.own_images else images.labelled
        try:
            fitted, lines = kind.fit_to(config, known)
        except ConfigError as error:
            reason = with_hint(str(error), files) if needs.own_images else str(error)
            raise ConfigError(f"{reason}{images._subset_note}") from error
        fitting.settings[key], fitting.images[key] = fitted, images.resized(config.interpolation)
        fitting.left_out.extend(f"{key}: {line}{images._subset_note}" for line in lines)

    @property
    def _subset_note(self) -> str:
        """The settings that select a part of the images, for messages."""
        chosen = [(name, getattr(self.data, name)) for name in ("limit", "skip", "subset")]
        named = ", ".join(f"data.{name}={value}" for name, value in chosen if value is not None)
        return f" (under {named})" if named else ""


def group_left_out(lines: Iterable[str]) -> list[str]:
    """Return lines of `Fitting.left_out`, with one line for all benchmarks that are left out for the same reason.

    >>> group_left_out(["knn is left out: no labels", "low_shot is left out: no labels", "svm: few images"])
    ['knn and low_shot are left out: no labels', 'svm: few images']
    """
    names_by_reason: dict[str, list[str]] = {}
    for line in lines:
        name, is_whole, reason = line.partition(_LEFT_OUT)
        names_by_reason.setdefault(reason if is_whole else line, []).extend([name] if is_whole else [])
    return [_left_out_line(names, reason) for reason, names in names_by_reason.items()]


_LEFT_OUT = " is left out: "


def _left_out_line(names: Sequence[str], reason: str) -> str:
    if len(names) < 2:
        return f"{names[0]}{_LEFT_OUT}{reason}" if names else reason
    return f"{', '.join(names[:-1])} and {names[-1]} are left out: {reason}"


def _refusals(refused: Mapping[str, ConfigError], rest: Sequence[str], in_run: bool) -> Iterator[str]:
    """Yield a line for each reason, with the benchmarks that are refused for it and how to leave them out."""
    keys_by_reason: dict[str, list[str]] = {}
    for key, error in refused.items():
        keys_by_reason.setdefault(str(error), []).append(key)
    for reason, keys in keys_by_reason.items():
        them = "it" if len(keys) == 1 else "them"
        way = f"; benchmarks=[{', '.join(rest)}] leaves {them} out" if in_run else ""
        if rest and not in_run:
            way = f"; without {them}, {', '.join(rest)} can be measured"
        yield f"benchmarks.{', '.join(keys)}: {reason}{way}"


def _held_out_hint(data: DataConfig) -> str:
    """Return a hint on the setting that names test images, and for a folder of images on `val/`."""
    name = next((field.name for field in fields(data) if field.name in ("test", "test_split")), None)
    if name is None:
        return ""
    way = f": add data.{name}={'PATH' if name == 'test' else 'NAME'} to this command"
    return f"{way}, or a folder val/ to the images" if data.name == "image_folder" else way


def _labels_of(split: Split) -> np.ndarray | None:
    """Return all labels of a split; None if reading them would take long."""
    return split.labels_of(np.arange(split.num_samples)) if split.has_quick_labels else None


def benchmark_class(config: BenchmarkConfig) -> type[Benchmark]:
    """Return the benchmark class that settings name."""
    kind: type[Benchmark] = resolve("benchmark", config.name)
    return kind


def check_benchmarks(config: RunConfig, train: Split, test: Split | None) -> Measurements:
    """Check the benchmarks of a run against its images."""
    images = MeasuredImages(config.data, train, test)
    fitting = images.fit(config.benchmarks)
    names, left_out = fitting.metrics(), list(fitting.left_out)
    if config.train.online_knn_every is None:
        return Measurements(names, group_left_out(left_out))
    try:
        if missing := images.lacks(Needs()):
            raise ConfigError(missing)
        vote = online_vote(config, images.labelled)
    except ConfigError as error:
        left_out.append(f"the online kNN is left out: {error}")
        return Measurements(names, group_left_out(left_out))
    online = [online_knn(k) for k in vote.k]
    return Measurements(names, group_left_out(left_out), online, partial(OnlineKNN, vote=vote))
