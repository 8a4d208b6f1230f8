"""The sources of detection, segmentation and depth: images with boxes, masks or depths."""

from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from raysl.benchmarks.dense.boxes import BoxSplit, coco_boxes, voc_boxes
from raysl.benchmarks.dense.dataset_files import TargetSplit
from raysl.benchmarks.dense.depths import DepthSplit, depth_split
from raysl.benchmarks.dense.masks import Layout, MaskSplit, mask_split
from raysl.benchmarks.dense.schedules import SCHEDULES
from raysl.config.ranges import Location
from raysl.data.source import DataConfig, Source
from raysl.storage.folder import Folder


class TargetSource(Source):
    """A dataset of images with targets, of which `data.limit` takes an even share."""

    @override
    def optional(self, name: str) -> TargetSplit:
        return self.split(name)  # the other settings that choose images are for classes

    @override
    def split(self, name: str) -> TargetSplit:
        raise NotImplementedError


class MaskImages(TargetSource):
    """Images with masks, in the layouts of Pascal VOC and ADE20K."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `segmentation`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.sources:MaskImages"
        path: Location
        layout: Layout = "voc"
        train_set: str | None = None
        test_set: str | None = None
        masks: str | None = None

    @override
    def split(self, name: str) -> MaskSplit:
        config, is_train = self.config, name == "train"
        chosen = config.train_set if is_train else config.test_set
        return mask_split(config.layout, Folder(config.path), is_train, chosen, config.masks).part(config.limit)


class DepthImages(TargetSource):
    """Images with depths, in the layout that BTS has of NYU Depth v2."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `depth`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.sources:DepthImages"
        path: Location
        train_set: str = "sync"
        test_set: str = "official_splits/test"

    @override
    def split(self, name: str) -> DepthSplit:
        config = self.config
        chosen = config.train_set if name == "train" else config.test_set
        return depth_split(Folder(config.path), chosen).part(config.limit)


class BoxImages(TargetSource):
    """Images with boxes, in the layouts of Pascal VOC and COCO; training images are those with an object."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Those of the benchmark `detection`, which has them under the same names."""

        name: str = "raysl.benchmarks.dense.sources:BoxImages"
        path: Location
        more: Location | None = None
        layout: Literal["voc", "coco"] = "voc"
        train_set: str | None = None
        test_set: str | None = None
        masks: bool = False

    @override
    def split(self, name: str) -> BoxSplit:
        config, usual = self.config, SCHEDULES[self.config.layout]
        if name == "test":
            split = self._boxes(config.test_set or usual.test_set).part(config.limit)
        else:
            split = self._boxes(config.train_set or usual.train_set)
            if config.more is not None:
                split = split.with_more(voc_boxes(Folder(config.more), SCHEDULES["voc"].train_set))
            split = split.trainable(with_apart=config.layout == "voc").part(config.limit)
        return _BoxesOfSource(split.images, split.objects, split.classes, config, name)

    def _boxes(self, chosen: str) -> BoxSplit:
        """Read a whole set of images."""
        folder = Folder(self.config.path)
        if self.config.layout == "voc":
            return voc_boxes(folder, chosen)
        return coco_boxes(folder, chosen, self.config.masks)


@dataclass(frozen=True)
class _BoxesOfSource(BoxSplit):
    """A split that is pickled as its settings and read again by other processes: COCO's polygons take gigabytes."""

    config: BoxImages.Config
    name: str

    def __reduce__(self) -> Any:
        return _read_boxes, (self.config, self.name)


def _read_boxes(config: BoxImages.Config, name: str) -> BoxSplit:
    return BoxImages(config).split(name)
