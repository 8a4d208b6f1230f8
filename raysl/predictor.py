"""Use of a trained network: features, neighbours and class probabilities of images (`raysl.Predictor`)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features.embedding import embed, read_rows
from raysl.benchmarks.features.stored_features import Features, read_features
from raysl.benchmarks.knn import knn_probabilities
from raysl.benchmarks.neighbours import nearest_rows
from raysl.benchmarks.suite.settings import load_data
from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.checkpoint_folder import META_FILE, STATE_FILE, has_state, local_copy
from raysl.components import resolve
from raysl.config.arguments import text_or_path, whole_number
from raysl.config.background import parse_color
from raysl.config.schema import DataConfig
from raysl.data.decode.bands import bands_of
from raysl.data.decode.corrupt import Replaced
from raysl.data.decode.images import NoValidImage
from raysl.data.given import describe_unusable, list_images, parse_device, split_images
from raysl.data.source import Split
from raysl.data.split import with_facts
from raysl.errors import ConfigError, log
from raysl.methods.method import Method
from raysl.nn.patch_maps import PatchMaps, patch_maps
from raysl.redact import redact_uri
from raysl.storage.addresses import absolute
from raysl.train.file_names import count_broken
from raysl.train.state import TrainState, setup_of
from raysl.transforms.channels import network_input

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Tensor | np.ndarray | Image | bytes | str | Path


@dataclass(frozen=True)
class Neighbours:
    """The nearest images of each of N images, nearest first.

    Args:
        index: int64 [N, k], indices of the neighbours among the searched images.
        cosine: float32 [N, k], of the angle between the features.
        labels: int64 [N, k] labels of the neighbours, -1 where unlabelled; [N, k, K] if images have several labels.
        names: files of the neighbours; empty if they are not known.
        classes: names of the neighbours' classes, "" where unlabelled, joined by ", " if an image has several; empty if
            they are not known.
    """

    index: Tensor
    cosine: Tensor
    labels: Tensor
    names: list[list[str]]
    classes: list[list[str]]


@dataclass(frozen=True)
class _Searched:
    """Features to search for neighbours, the names of their images, and those of the classes, by label."""

    rows: FeatureSet
    names: Sequence[str] = ()
    classes: Sequence[str] = ()


class Predictor:
    """Applies a checkpoint to images, which are decoded, cropped and normalised as in its benchmarks.

    Images are paths or URIs, encoded bytes, Pillow images, uint8 tensors [3, H, W] or arrays [H, W, 3]: one of them, a
    list of any sizes and kinds, or a batch as a uint8 tensor [N, 3, H, W] or an array [N, H, W, 3]. Where the run's
    `data.channels` is a number C, tensors are [C, H, W] and arrays [H, W, C], of stored numbers.

    >>> predictor = Predictor("runs/mine")
    >>> predictor(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape == (2, predictor.backbone.feature_dim)
    True

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
            checkpoint: local path or URI of a checkpoint, or of a run for its newest checkpoint; or the name of a
                trained backbone of raysl, `cifar10/simclr`.
            device: device of the network; auto is a GPU if there is one.
            batch_size: number of images in memory at a time.
            trust_code: whether to import code outside raysl that the checkpoint names.

        Raises:
            ConfigError: if there is no checkpoint, it cannot be read, or an argument is wrong.
        """
        if isinstance(device, str) and device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = parse_device(device)
        self.batch_size = whole_number(batch_size, "batch_size", 1, "a number of images")
        self.checkpoint: Checkpoint = load_checkpoint(text_or_path(checkpoint, "checkpoint", "runs/mine"), trust_code)
        self.backbone = self.checkpoint.backbone.to(self.device)
        self.data = self.checkpoint.config.data
        self._method: Method | None = None
        self._folders: dict[str, _Searched] = {}

    def __repr__(self) -> str:
        """The checkpoint, its backbone, and where it computes."""
        return f"Predictor({redact_uri(self.checkpoint.uri)}; {self.backbone}; on {self.device})"

    def __call__(self, images: "Picture | Sequence[Picture]") -> Tensor:
        """Return the features of images, see `features`."""
        return self.features(images)

    def features(self, images: "Picture | Sequence[Picture]") -> Tensor:
        """Return the features of images, float32 [N, feature_dim] on the CPU, equal to those of `raysl.extract`.

        Raises:
            ConfigError: if there is no image, or some cannot be used; the message lists them by their position.
            RunFailed: if a download fails repeatedly.
        """
        given = list_images(images)
        parts = []
        for first in range(0, len(given), self.batch_size):
            parts.append(self._embed(self._split(given[first : first + self.batch_size], first)))
        return torch.cat(parts)

    def patches(
        self, images: "Picture | Sequence[Picture]", *, stage: str | None = None, size: int | None = None
    ) -> PatchMaps:
        """Return the features of the patches of images, which give colours, similarities and nearest patches.

            maps = predictor.patches(["a.jpg", "b.jpg"])
            Image.fromarray(maps.colors()[0].numpy())  # Pillow's

        Args:
            images: see the class.
            stage: stage of the backbone that is a map or tokens. Default: the output tokens of a ViT; of other networks
                the last map with at least 4 x 4 places.
            size: side of the square images that the network gets, in pixels, which a ViT's patches have to cover; twice
                `data.image_size` doubles the number of patches across. Default: `data.image_size`.

        Raises:
            ConfigError: as `features`, and if the network has no such map, or does not take images of this size.
        """
        data = self.data
        if size is not None:
            side = whole_number(size, "size", 1, "a side in pixels")
            data = replace(data, image_size=side, eval_resize=None)
        type(self.backbone).check_side(self.backbone.config, data.image_size)
        split = self._split(list_images(images), 0)
        try:
            read = read_rows(split, np.arange(split.num_samples), data)
        except NoValidImage as error:
            raise ConfigError(f"no image can be used; {error}") from error
        if read.corrupt:
            raise ConfigError(describe_unusable(read.corrupt))
        shown = read.views["image"]  # [N, C, H, W]
        normal = network_input(shown, data.mean, data.std, data.channels).to(self.device)
        try:
            maps = patch_maps(self.backbone, normal, stage, self.batch_size)
        except ValueError as error:  # of a stage that is not there
            raise ConfigError(str(error)) from error
        return replace(maps, images=shown)

    def neighbours(
        self, images: "Picture | Sequence[Picture]", among: Features | FeatureSet | str | Path, k: int = 5
    ) -> Neighbours:
        """Return the images that are nearest to the given ones by the cosine of their features.

        Args:
            images: see the class.
            among: features of the same checkpoint from `raysl.extract`, the Parquet folder that it writes, or a folder
                of images, whose features are computed once; broken images in it are left out, with a warning.
            k: neighbours of each image; fewer if there are fewer images.

        Raises:
            ConfigError: as `features`, and if `among` cannot be read, or its features have another width.
        """
        searched = self._read_searched(among)
        queries = self.features(images)
        chunks = list(nearest_rows(searched.rows.features, queries, _count(k)))
        index = torch.cat([rows for _, rows in chunks])
        names = [[searched.names[number] for number in row] for row in index.tolist()] if searched.names else []
        labels = searched.rows.labels[index]
        classes = [[_class_of(one, searched.classes) for one in row] for row in labels] if searched.classes else []
        return Neighbours(index, torch.cat([cosines for cosines, _ in chunks]), labels, names, classes)

    def probabilities(
        self,
        images: "Picture | Sequence[Picture]",
        among: Features | FeatureSet | str | Path | None = None,
        k: int = 20,
        temperature: float = 0.07,
    ) -> Tensor:
        """Return class probabilities, float32 [N, number of classes]; `class_names` has the names of these classes.

        Args:
            images: see the class.
            among: labelled images as for `neighbours`, for the vote of the k nearest as in the kNN benchmark. Default:
                the softmax of the class scores of a method that was trained with labels.
            k, temperature: settings of the vote.

        Raises:
            ConfigError: as `neighbours`, and if an image in `among` has not one label, or `among` is left out and the
                method has learned no classes.
        """
        if among is None:
            return self._score_by_method(images)
        if isinstance(temperature, bool) or not isinstance(temperature, Real) or not temperature > 0:
            raise ConfigError(f"temperature: {temperature!r} divides cosines; give a number above 0, such as 0.07")
        rows = self._read_searched(among).rows
        if (num_classes := int(rows.labels.max()) + 1) == 0:
            where = f"among={str(among)!r}" if isinstance(among, str | os.PathLike) else "among"
            raise ConfigError(
                f"{where}: no image has a label, which votes for a class; give a folder with a sub-folder for each "
                "class, or raysl.extract(..., split='train') of images with labels"
            )
        rows.check("searched", num_classes)
        return knn_probabilities(rows, self.features(images), num_classes, _count(k), temperature)

    def class_names(self, among: Features | FeatureSet | str | Path | None = None) -> tuple[str, ...]:
        """Return the names of the classes, by label, in the order of `probabilities`; empty if they are not known.

        Args:
            among: argument as for `probabilities`. Default: the training images of the run, which are looked up for it.

        Raises:
            ConfigError: as `neighbours`, and if `among` is left out and the run's images are not there.
        """
        if among is not None:
            return tuple(self._read_searched(among).classes)
        data = self.checkpoint.config.data
        return tuple(resolve("source", data.name)(data).required("train").classes)

    def _split(self, images: Sequence[Any], first: int) -> Split:
        """Return images that a user gave as a split; `first` is the position of the first of them, for messages."""
        bands = bands_of(self.data)
        return with_facts(split_images(images, first, bands), background=parse_color(self.data.background), bands=bands)

    def _embed(self, split: Split) -> Tensor:
        """Return the features of all images of a split, as one batch."""
        try:
            embedded = embed({"": self.backbone}, split, np.arange(split.num_samples), self.data, self.device)
        except NoValidImage as error:
            raise ConfigError(f"no image can be used; {error}") from error
        if embedded.corrupt:
            raise ConfigError(describe_unusable(embedded.corrupt))
        return embedded.features[""]

    @torch.inference_mode()
    def _score_by_method(self, images: "Picture | Sequence[Picture]") -> Tensor:
        scores = None
        if has_state(self.checkpoint.meta):
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
        # the exported backbone is then the averaged one, and needs the averaged heads
        if state.average is not None and state.config.train.ema_export:
            state.average.load_into(state.method)
        return state.method.eval()

    def _read_searched(self, among: Any) -> _Searched:
        if isinstance(among, str | os.PathLike) and str(among).endswith(".parquet"):
            among = read_features(str(among))
        if isinstance(among, Features):
            names = among.names if among.path else ()
            searched = _Searched(FeatureSet(among.features, among.labels), names, among.classes)
        elif isinstance(among, FeatureSet):
            searched = _Searched(among)
        elif isinstance(among, str | os.PathLike):
            searched = self._folder(str(among))
        else:
            raise ConfigError(
                f"among is a {type(among).__name__}; give what raysl.extract returns, its Parquet folder, or a folder "
                "of images"
            )
        width, expected = searched.rows.features.shape[1], self.backbone.feature_dim
        if width != expected:
            raise ConfigError(
                f"among has features of width {width}, this network's have {expected}; extract them with this one"
            )
        return searched

    def _folder(self, path: str) -> _Searched:
        """Return the features of the images below a folder, computed once; sub-folders are classes."""
        path = absolute(path)
        if path not in self._folders:
            data: Any = load_data(self.checkpoint.config, ["data=image_folder"])
            data = replace(data, path=path)
            split = resolve("source", data.name)(data).required("train")
            self._folders[path] = self._search_in(split, data)
        return self._folders[path]

    def _search_in(self, split: Split, data: DataConfig) -> _Searched:
        """Return the features of a split without its broken images, of which a warning tells."""
        parts, labels = [], []
        broken: list[Replaced] = []
        for first in range(0, split.num_samples, self.batch_size):
            index = np.arange(first, min(first + self.batch_size, split.num_samples))
            try:
                embedded = embed({"": self.backbone}, split, index, data, self.device)
            except NoValidImage as error:
                raise ConfigError(f"no image to search can be used; {error}") from error
            broken += embedded.corrupt
            parts.append(embedded.features[""])
            labels.append(torch.from_numpy(embedded.labels))
        if broken:
            log.warning("%s and left out; the first: %s", count_broken(len(broken)), broken[0])
        # the row of a broken image holds the features of another image, which would count twice
        kept = np.setdiff1d(np.arange(split.num_samples), [image.row for image in broken])
        rows = torch.from_numpy(kept)
        features = FeatureSet(torch.cat(parts)[rows], torch.cat(labels)[rows])
        return _Searched(features, split.names_of(kept), split.classes)


def _class_of(label: Tensor, classes: Sequence[str]) -> str:
    """Return the name of a label, or of all labels [K] of an image."""
    numbers = label.argwhere().flatten().tolist() if label.ndim else [int(label)] if label >= 0 else []
    return ", ".join(classes[number] for number in numbers)


def _count(k: Any) -> int:
    return whole_number(k, "k", 1, "a number of neighbours")
