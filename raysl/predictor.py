"""A trained network put to use: images to features, to neighbours, to probabilities of classes (`raysl.Predictor`)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.features.stored import Features, read_features
from raysl.benchmarks.knn import knn_probabilities
from raysl.benchmarks.neighbours import nearest_rows
from raysl.benchmarks.suite.settings import load_data
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.files import META_FILE, STATE_FILE, local_copy
from raysl.components import resolve
from raysl.config.arguments import text_or_path
from raysl.config.background import parse_color
from raysl.data.decode.pixels import CorruptImage
from raysl.data.given import describe_unusable, list_images, parse_device, split_images
from raysl.data.source import Split
from raysl.data.split import with_background
from raysl.errors import ConfigError
from raysl.methods.method import Method
from raysl.train.state import TrainState, setup_of

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Tensor | np.ndarray | Image | bytes | str | Path


@dataclass(frozen=True)
class Neighbours:
    """The nearest images of each of N, nearest first.

    Args:
        index: int64 [N, k], places among the images that were searched.
        cosine: float32 [N, k], of the angle between the features.
        labels: int64 [N, k] of the images found, -1 where unlabelled; [N, k, K] where an image has several.
        names: of the images found, where they are files; else empty.
    """

    index: Tensor
    cosine: Tensor
    labels: Tensor
    names: list[list[str]]


@dataclass(frozen=True)
class _Searched:
    """Features that neighbours are looked for in, and names of their images."""

    found: FeatureSet
    names: list[str]


class Predictor:
    """What a checkpoint makes of images, which are decoded, cut and normalised as its benchmarks do it.

    Images are given as paths or URIs, encoded bytes, images of Pillow's, uint8 tensors [3, H, W] or arrays [H, W, 3],
    one of them or a list of any sizes and kinds, or a uint8 tensor [N, 3, H, W] or an array [N, H, W, 3].

        predictor = raysl.Predictor("runs/mine")
        features = predictor(["a.jpg", "s3://bucket/b.png"])  # [2, D]
        near = predictor.neighbours("a.jpg", among="photos/", k=3)
        shares = predictor.probabilities("a.jpg", among=raysl.extract("runs/mine", split="train"))
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        device: torch.device | str = "auto",
        batch_size: int = 64,
        trust_code: bool = False,
    ) -> None:
        """Load a checkpoint.

        Args:
            checkpoint: local path or URI of one, or of a run, whose newest one is taken.
            device: where features are computed; auto is a GPU where there is one.
            batch_size: images that are in memory at a time.
            trust_code: whether components that the checkpoint names may be code that is not raysl's.

        Raises:
            ConfigError: if there is no checkpoint, it cannot be read, or an argument is wrong.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size {batch_size!r} is no number of images; give 1 or more")
        if isinstance(device, str) and device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = parse_device(device)
        self.batch_size = batch_size
        self.checkpoint: Checkpoint = load_checkpoint(text_or_path(checkpoint, "checkpoint", "runs/mine"), trust_code)
        self.backbone = self.checkpoint.backbone.to(self.device)
        self.data = self.checkpoint.config.data
        self._method: Method | None = None
        self._folders: dict[str, _Searched] = {}

    def __call__(self, images: "Picture | Sequence[Picture]") -> Tensor:
        """See `features`."""
        return self.features(images)

    def features(self, images: "Picture | Sequence[Picture]") -> Tensor:
        """Features of images, float32 [N, feature_dim] on the CPU, those that `raysl.extract` gives.

        Raises:
            ConfigError: if there is no image, or some cannot be used; the message has each of them, by its place.
            RunFailed: if a network fails again and again.
        """
        given = list_images(images)
        parts = []
        for first in range(0, len(given), self.batch_size):
            split = split_images(given[first : first + self.batch_size], first)
            parts.append(self._embedded(with_background(split, parse_color(self.data.background))))
        return torch.cat(parts)

    def neighbours(
        self, images: "Picture | Sequence[Picture]", among: Features | FeatureSet | str | Path, k: int = 5
    ) -> Neighbours:
        """The images that are nearest to others by the cosine of their features.

        Args:
            images: see the class.
            among: features of the same checkpoint, as `raysl.extract` gives them; the Parquet folder that it writes; or
                a folder of images, whose features are computed once.
            k: how many for each; fewer where there are not as many.

        Raises:
            ConfigError: as `features`, and if what is searched cannot be, or its features are of another width.
        """
        searched = self._searched(among)
        queries = self.features(images)
        chunks = list(nearest_rows(searched.found.features, queries, _count(k)))
        index = torch.cat([rows for _, rows in chunks])
        names = [[searched.names[place] for place in row] for row in index.tolist()] if searched.names else []
        return Neighbours(index, torch.cat([cosines for cosines, _ in chunks]), searched.found.labels[index], names)

    def probabilities(
        self,
        images: "Picture | Sequence[Picture]",
        among: Features | FeatureSet | str | Path | None = None,
        k: int = 20,
        temperature: float = 0.07,
    ) -> Tensor:
        """Probabilities of classes, float32 [N, number of classes].

        Args:
            images: see the class.
            among: labelled images as for `neighbours`: the share of each class in the vote of the k nearest, as the kNN
                benchmark counts it. Default: the softmax of the scores that the method has learned with labels.
            k, temperature: of the vote.

        Raises:
            ConfigError: as `neighbours`, and if images that vote have no label each, or nothing is given to vote and
                the method learned no classes.
        """
        if among is None:
            return self._learned(images)
        if not temperature > 0:
            raise ConfigError(f"temperature {temperature!r} divides cosines; give a number above 0, such as 0.07")
        found = self._searched(among).found
        num_classes = int(found.labels.max()) + 1
        found.check("searched", num_classes)
        return knn_probabilities(found, self.features(images), num_classes, _count(k), temperature)

    def _embedded(self, split: Split) -> Tensor:
        """Features of all images of a split of one batch."""
        try:
            found = embed({"": self.backbone}, split, np.arange(split.num_samples), self.data, self.device)
        except CorruptImage as error:
            raise ConfigError(f"no image can be used; {error}") from error
        if found.corrupt:
            raise ConfigError(describe_unusable(found.corrupt))
        return found.features[""]

    @torch.inference_mode()
    def _learned(self, images: "Picture | Sequence[Picture]") -> Tensor:
        method = self._method = self._method or self._load_method()
        scores = method.class_scores(self.features(images).to(self.device))
        if scores is None:
            raise ConfigError(
                f"method={self.checkpoint.config.method.name} has learned no classes; give labelled images to vote, "
                "among=raysl.extract(..., split='train') or a folder with a sub-folder for each class"
            )
        return scores.softmax(dim=1).cpu()

    def _load_method(self) -> Method:
        state = TrainState.create(setup_of(self.checkpoint), self.device, is_new=False)
        with local_copy(self.checkpoint.uri, [META_FILE, STATE_FILE]) as folder:
            state.load(folder)
        if state.average is not None and state.config.train.ema_export:
            state.average.load_into(state.method)
        return state.method.eval()

    def _searched(self, among: Any) -> _Searched:
        if isinstance(among, Features | FeatureSet):
            searched = _Searched(FeatureSet(among.features, among.labels), [])
        elif isinstance(among, str | os.PathLike) and str(among).endswith(".parquet"):
            read = read_features(str(among))
            searched = _Searched(FeatureSet(read.features, read.labels), [])
        elif isinstance(among, str | os.PathLike):
            searched = self._folder(str(among))
        else:
            raise ConfigError(
                f"among is a {type(among).__name__}; give what raysl.extract returns, its Parquet folder, or a folder "
                "of images"
            )
        width, own = searched.found.features.shape[1], self.backbone.feature_dim
        if width != own:
            raise ConfigError(f"among has features of {width} values, this network's have {own}; extract them by it")
        return searched

    def _folder(self, path: str) -> _Searched:
        """Features of the images below a folder, computed once; sub-folders are classes."""
        if path not in self._folders:
            data: Any = load_data(self.checkpoint.config, ["data=image_folder"])
            data = replace(data, path=path)
            split = resolve("source", data.name)(data).required("train")
            parts, labels, names = [], [], []
            for first in range(0, split.num_samples, self.batch_size):
                index = np.arange(first, min(first + self.batch_size, split.num_samples))
                found = embed({"": self.backbone}, split, index, data, self.device)
                if found.corrupt:
                    raise ConfigError(describe_unusable(found.corrupt))
                parts.append(found.features[""])
                labels.append(torch.from_numpy(found.labels))
                names += split.names_of(index)
            self._folders[path] = _Searched(FeatureSet(torch.cat(parts), torch.cat(labels)), names)
        return self._folders[path]


def _count(k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k {k!r} is no number of neighbours; give 1 or more")
    return k
