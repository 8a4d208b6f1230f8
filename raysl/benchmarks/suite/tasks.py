"""The tasks of a checkpoint's benchmarks: features for all of them at once, then a task for each side."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from raysl.benchmarks.benchmark import FEATURES, PIXELS, Context, Side
from raysl.benchmarks.features.extraction import Wanted, feature_sets
from raysl.benchmarks.features.stored_features import StoredSet
from raysl.benchmarks.report.assemble import Pictured
from raysl.benchmarks.suite.fitting import Fitting, MeasuredImages, benchmark_class
from raysl.benchmarks.suite.protocols import digest_of
from raysl.benchmarks.suite.results import image_settings
from raysl.benchmarks.suite.side_by_side import Task
from raysl.benchmarks.suite.workplace import Workplace
from raysl.checkpoint.backbone import Checkpoint
from raysl.data.source import Split
from raysl.data.sources.subset import sample_of
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.pooling import RawPixels
from raysl.process.waiting import enter
from raysl.train.state import untrained_backbone

MOST_SHOWN = 5000
"""Images that the pictures of a report are chosen from where no benchmark has the features of all of them."""


@dataclass(frozen=True)
class Tasks:
    """Makes the tasks of benchmarks.

    Args:
        images: those that the report shows.
        names: names of the results, by the keys of the benchmarks.
        workplace: where features and trainings are kept.
    """

    loaded: Checkpoint
    fitting: Fitting
    images: MeasuredImages
    names: Mapping[str, str]
    workplace: Workplace
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def networks(self) -> dict[Side, nn.Module]:
        """The networks to measure, by side."""
        return {"trained": self.loaded.backbone, "untrained": untrained_backbone(self.loaded), "pixels": RawPixels()}

    def of(self, keys: list[str]) -> Iterator[Task]:
        """Yield a task for each benchmark and side; features are extracted once for all of them."""
        stages = {key: benchmark_class(config).stages(config) for key, config in self.fitting.settings.items()}
        stored: dict[tuple[int, str], dict[str, StoredSet]] = {}
        for images in {id(self.fitting.images[key]): self.fitting.images[key] for key in keys}.values():
            keys_on_images = [key for key in keys if self.fitting.images[key] is images and stages[key]]
            for name, split in images.splits.items() if keys_on_images else ():
                stored[id(images), name] = self._extract(keys_on_images, stages, split, images, name)
        for key in keys:
            config, images = self.fitting.settings[key], self.fitting.images[key]
            for side in self._sides(key):
                sets = {name: stored.get((id(images), name), {}).get(side) for name in ("train", "test")}
                if stages[key] and sets["train"] is None:
                    continue  # pixels have no stages
                context = Context(
                    side=side,
                    network=self.networks[side],
                    checkpoint=self.loaded,
                    data=images.data,
                    images=images.splits,
                    train=None,
                    test=None,
                    num_classes=images.num_classes,
                    seed=self.loaded.config.seed,
                    folder=self.workplace.work.child(f"{self.names[key]}.{side}"),
                )
                train, test = (sets[name] if stages[key] else None for name in ("train", "test"))
                yield Task(
                    key, benchmark_class(config), config, context, stages[key], train, test, images.train.classes
                )

    def _sides(self, key: str) -> list[Side]:
        rivals = self.fitting.settings[key].rivals
        return [side for side in self.networks if side == "trained" or side in rivals]

    def _extract(
        self,
        keys: list[str],
        stages_by_key: Mapping[str, tuple[str, ...]],
        split: Split,
        images: MeasuredImages,
        name: str,
    ) -> dict[str, StoredSet]:
        enter(f"computing features of {split.num_samples:,} {name} images")
        sides = [side for side in self.networks if any(side in self._sides(key) for key in keys)]
        stages = tuple(dict.fromkeys([FEATURES, *(stage for key in keys for stage in stages_by_key[key])]))
        digest = self.loaded.digest
        wanted = Wanted(
            networks={side: self.networks[side] for side in sides},
            weights={side: PIXELS if side == PIXELS else f"{side} {digest}" for side in sides},
            stages=stages,
            pictured=_pictured(split) if split is self._shown_split else None,
        )
        folder = name
        if images is not self.images:  # images other than the report's, or of other sizes, have a folder of their own
            seen = [images.state(name), image_settings(images.data), images.data.eval_interpolation]
            folder = f"{digest_of(seen)}_{name}"
        return feature_sets(wanted, split, images.data, self.workplace.features(folder), self.token)

    @property
    def _shown_split(self) -> Split:
        """The images that a report shows some of: held-out ones if there are any."""
        return self.images.train if self.images.test is None else self.images.test

    def shown(self, tasks: list[Task]) -> Pictured:
        """Return the images that a report shows, and the trained backbone's features of them: those of a task, or
        extracted from a sample of the images."""
        split, is_held_out = self._shown_split, self.images.test is not None
        for task in tasks:
            is_of_report = self.fitting.images[task.key].train is self.images.train and task.context.side == "trained"
            if is_of_report and task.test is not None:
                return Pictured(split, task.test.load((FEATURES,)), is_held_out, task.test.stores.get(FEATURES))
        split = sample_of(split, MOST_SHOWN)
        wanted = Wanted(
            networks={"trained": self.loaded.backbone},
            weights={"trained": f"trained {self.loaded.digest}"},
            pictured=_pictured(split),
        )
        stored = feature_sets(wanted, split, self.images.data, self.workplace.features("shown"))["trained"]
        return Pictured(split, stored.load((FEATURES,)), is_held_out, stored.stores[FEATURES])


def outlooks(tasks: Sequence[Task], cores: float) -> Iterator[str]:
    """Yield a line for each benchmark on features that will take long."""
    for key in dict.fromkeys(task.key for task in tasks):
        of_key = [task for task in tasks if task.key == key]
        first, network = of_key[0], of_key[0].context.network
        if first.train is None or not isinstance(network, Backbone):
            continue
        rows = first.context.images["train"].num_samples
        width = sum(network.stage_widths.get(stage, network.feature_dim) for stage in first.stages)
        outlook = first.kind.outlook(first.config, rows, width, first.context.num_classes)
        if outlook is not None and (line := outlook.line(key, len(of_key), cores)):
            yield line


def _pictured(split: Split) -> tuple[str, str] | None:
    """Return the features beside which thumbnails of images are kept, where reading some images again is slow."""
    return None if split.is_random_access else ("trained", FEATURES)
