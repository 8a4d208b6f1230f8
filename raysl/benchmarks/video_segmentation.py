"""Objects of a video, followed from the first frame by frozen features (Caron et al. 2021, arXiv 2104.14294, table 5).

The protocol is that of Jabri et al. 2020 (arXiv 2006.14613) with the numbers of DINO's `eval_video_segmentation.py`;
the scores are those of the repository davis2017-evaluation (semi-supervised: without the first and the last frame).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, ConfigError, Context, Findings, Labelled, mean_of
from raysl.benchmarks.dense.maps import MapStage, chosen_stages, maps_of
from raysl.benchmarks.dense.overlap import contour_accuracy, region_similarity
from raysl.benchmarks.dense.videos import Video, davis_videos, followed, objects_of
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Count, Interpolation, Location, Side, Temperature, Within
from raysl.config.schema import BenchmarkConfig, DataConfig
from raysl.nn.backbones.backbone import Backbone
from raysl.storage.folder import Folder
from raysl.transforms.channels import network_input
from raysl.transforms.functional import resize

MULTIPLE = 64
"""The long side of frames is rounded down to a multiple of it, as in DINO's code."""
RECALLED = 0.5
"""A frame counts in the recall where its score is above it."""
TITLES = {
    "jf_mean": "Video segmentation, J&F",
    "j_mean": "Region similarity J",
    "j_recall": "J, recall",
    "f_mean": "Contour accuracy F",
    "f_recall": "F, recall",
}


class VideoSegmentation(Benchmark):
    """Region similarity and contour accuracy of objects that are followed by nearest neighbours of frozen features.

    Nothing is trained: the labels of the first frame spread to the later ones. Metrics in percent are means over the
    objects of all videos: `j_mean` and `f_mean` of their means over frames, `jf_mean` of both, and `j_recall` and
    `f_recall` of the share of frames above 0.5; intervals are over objects. The figure `per_class` has J&F of each
    video.
    """

    protocol = (
        "Labels of a video's first frame spread to the nearest of its patch features and those of the 7 latest frames, "
        "on DAVIS 2017 (DINO, Caron et al. 2021, arXiv 2104.14294, table 5; Jabri et al. 2020, arXiv 2006.14613)."
    )
    cost = "a forward pass of 480 px for each frame, about 2,000 in the validation videos; nothing is trained"
    own_images = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the propagation, those of DINO's code."""

        name: str = "video_segmentation"
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """Rivals of the pre-trained backbone: the same one with initial weights."""
        interpolation: Interpolation = "bilinear"
        """How frames are resized; DINO's code has bilinear."""
        path: Location | None = None
        """Folder or URI of DAVIS, with JPEGImages/, Annotations/ and ImageSets/2017/ in it. Required."""
        test_set: str = "val"
        """List of the videos in `ImageSets/2017`."""
        resolution: str = "480p"
        """Folder of the frames in `JPEGImages` and of the masks in `Annotations`."""
        limit: Count | None = None
        """Number of videos that are used, an even share. Default: all."""
        stage: str | None = None
        """Map of the backbone whose features are compared. Default: the last one, of a ViT its patch tokens."""
        short_side: Side = 480
        """Short side of a frame in pixels, rounded down to whole patches; the long side to a multiple of 64 of it."""
        context: Count = 7
        """Latest frames that labels come from, beside the first frame."""
        radius: Annotated[int, Within(1, 16_384)] | None = 12
        """Rows and columns of the map that a label may move from one of those frames; null for any."""
        neighbours: Count = 5
        """Nearest places that a label comes from."""
        temperature: Temperature = 0.1
        """That the cosines of these are divided by in the softmax."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """All videos must be complete."""
        _videos(config)
        return config, []

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        backbone = checkpoint.backbone
        chosen_stages(backbone, _named(config))
        side, _ = sides(config.short_side, config.short_side, config.short_side, backbone.patch_size or 1)
        type(backbone).check_side(backbone.config, side)

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return list(TITLES)

    @override
    @torch.inference_mode()
    def measure(self, context: Context) -> Findings:
        network = context.network
        assert isinstance(network, Backbone)
        network = network.to("cuda" if torch.cuda.is_available() else "cpu")
        (stage,) = chosen_stages(network, _named(self.config))
        scores = {
            video.name: self._scores(video, Follower(self.config, network, stage, context.data))
            for video in _videos(self.config)
        }
        means = torch.cat([frames.mean(dim=1) for frames in scores.values()])  # [objects, 2]
        recalls = torch.cat([(frames > RECALLED).double().mean(dim=1) for frames in scores.values()])
        values = (means.mean(dim=1), means[:, 0], recalls[:, 0], means[:, 1], recalls[:, 1])
        metrics = [
            mean_of(name, value, title=title, is_headline=name == "jf_mean", seed=context.seed)
            for (name, title), value in zip(TITLES.items(), values, strict=True)
        ]
        per_video = {name: 100 * frames.mean().item() for name, frames in scores.items()}
        return Findings(metrics, figures={"per_class": {"J&F of each video, %": per_video}})

    @staticmethod
    def _scores(video: Video, follower: "Follower") -> Tensor:
        """Return J and F of each object in each frame between the first and the last, in [0, 1]
        [objects, frames, 2]."""
        first = video.mask(0)
        num = int(first.max())
        if num == 0:
            raise ConfigError(f"{video.masks.uri_of(0)} shows no object; fetch the dataset anew")
        scores = []
        for number, predicted in enumerate(follower.predict(video, first), 1):
            label = video.mask(number)
            if label.shape != predicted.shape:
                raise ConfigError(
                    f"{video.masks.uri_of(number)} has {list(label.shape)} pixels, and its first frame "
                    f"{list(predicted.shape)}; fetch the dataset anew"
                )
            pairs = [((predicted == one).numpy(), (label == one).numpy()) for one in range(1, num + 1)]
            scores.append([(region_similarity(*pair), contour_accuracy(*pair)) for pair in pairs])
        return torch.tensor(scores, dtype=torch.float64).transpose(0, 1)


@dataclass(frozen=True)
class Follower:
    """A backbone that follows the objects of videos.

    Args:
        data: gives normalisation and the filter of the resize.
    """

    config: VideoSegmentation.Config
    network: Backbone
    stage: MapStage
    data: DataConfig

    def predict(self, video: Video, first: Tensor) -> Iterator[Tensor]:
        """Yield the object of each pixel of each frame between the first and the last, int64 [H, W] on the CPU.

        Args:
            first: objects of the first frame's pixels, uint8 [H, W].
        """
        config = self.config
        patch = self.network.patch_size or 1
        size = sides(first.shape[0], first.shape[1], config.short_side, patch)
        # the last frame is not measured, so it is not read
        maps = (self.features(video.frames.image(number), size) for number in range(len(video) - 1))
        start = next(maps)
        # labels of the first frame get the size of its map, without mixing objects
        small = F.interpolate(first[None, None].float(), size=tuple(start.shape[1:]), mode="nearest-exact")[0, 0]
        labels = F.one_hot(small.long(), int(first.max()) + 1).permute(2, 0, 1).to(start)  # [K, h, w]
        frames = chain([start], maps)
        for frame in followed(frames, labels, config.context, config.radius, config.neighbours, config.temperature):
            objects = objects_of(frame, size)
            yield F.interpolate(objects[None, None].float(), size=first.shape, mode="nearest-exact")[0, 0].long().cpu()

    def features(self, frame: Tensor, size: tuple[int, int]) -> Tensor:
        """Compute the map [C, h, w] of a frame uint8 [3, H, W] that is resized to height and width in pixels."""
        resized = resize(frame, *size, self.data.eval_interpolation).to(next(self.network.parameters()).device)
        images = network_input(resized[None], self.data.mean, self.data.std, self.data.channels)
        (maps,) = maps_of(self.network, images, [self.stage])
        return maps[0].float()


def sides(height: int, width: int, short_side: int, patch: int) -> tuple[int, int]:
    """Return height and width in pixels that a frame is resized to.

    >>> sides(480, 854, 480, 16)
    (480, 832)
    """
    short = max(1, short_side // patch) * patch
    long = short_side * max(height, width) // min(height, width)
    long = long // MULTIPLE * MULTIPLE if long >= MULTIPLE else long
    long = max(short, long // patch * patch)
    return (long, short) if height > width else (short, long)


def _named(config: VideoSegmentation.Config) -> tuple[str, ...]:
    return () if config.stage is None else (config.stage,)


def _videos(config: VideoSegmentation.Config) -> list[Video]:
    if config.path is None:
        raise ConfigError("video_segmentation needs path=, the folder of DAVIS 2017 with JPEGImages/ in it")
    return davis_videos(Folder(config.path), config.test_set, config.resolution, config.limit)
