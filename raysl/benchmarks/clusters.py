"""Clusters of a dataset by a checkpoint's features, on disk: the first half of ClusterFit (arXiv 1912.03330)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from raysl.benchmarks.benchmark import FEATURES, ConfigError
from raysl.benchmarks.features.extraction import Wanted, extract_to
from raysl.benchmarks.features.stored_features import Features
from raysl.benchmarks.suite.settings import dataset_tag, load_data, sort_overrides
from raysl.checkpoint.backbone import load_checkpoint
from raysl.cluster.settings import use_settings
from raysl.config.build import build_node
from raysl.config.layers import parse_overrides
from raysl.config.ranges import Count, Seed, Width, Within
from raysl.data.assignments import Assignments
from raysl.data.source import make_source
from raysl.methods.shared.image_clusters import feature_clusters
from raysl.redact import redact_uri
from raysl.storage.folder import Folder, join


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Settings of a clustering."""

    k: Count = 16_000
    """Number of clusters."""
    iters: Annotated[int, Within(1, 1000)] = 50
    """Rounds of k-means."""
    pca_dim: Width | None = None
    """Principal components of the features that are whitened and clustered, all where the features have fewer. Default:
    the features as they are."""
    seed: Seed = 0
    """Of the images whose features k-means begins with."""


@dataclass(frozen=True)
class Clustered:
    """The result of a clustering.

    Args:
        assignments: each training image's cluster.
        path: the file that holds the same.
    """

    assignments: Assignments
    path: str


def cluster_images(
    checkpoint: str, overrides: Sequence[str] = (), out: str | None = None, trust_code: bool = False
) -> Clustered:
    """Cluster the training images of a dataset by the features of a checkpoint's backbone.

    The features go to disk, and an interrupted call is resumed there. Brought to length 1 they
    are clustered by k-means in this process, on a GPU where there is one.

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run, whose newest one is taken.
        overrides: settings of `Clustering`, such as `k=1000`, and of other images than the run's, such as
            `data.path=/b`.
        out: Parquet file to write; default: `clusters_<k>.parquet` beside the checkpoint, and for images that are not
            the run's `clusters_<dataset>_<k>.parquet`.
        trust_code: whether components that the checkpoint names may be code that is not raysl's.
    """
    of_data, *others = sort_overrides(overrides)
    settings = build_node(Clustering, parse_overrides([word for part in others for word in part]), "cluster")
    loaded = load_checkpoint(checkpoint, trust_code)
    use_settings(loaded.config.cluster)
    data = load_data(loaded.config, of_data)
    images = make_source(data).required("train")
    if settings.k > images.num_samples:
        raise ConfigError(f"k={settings.k} is more than the {images.num_samples} images; give fewer clusters")
    tag = dataset_tag(data, loaded.config.data)
    folder = Folder(join(loaded.uri, f"clustered_{f'{tag}_' if tag else ''}train.parquet"))
    wanted = Wanted({"trained": loaded.backbone}, {"trained": loaded.digest})
    (store,) = extract_to(wanted, images, data, {("trained", FEATURES): folder}).values()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features = Features(path=folder.uri)
    rows = features.features.to(device)
    clusters = feature_clusters(rows, settings.k, settings.iters, settings.seed, settings.pca_dim).cpu()
    path = out or join(loaded.uri, f"clusters_{f'{tag}_' if tag else ''}{settings.k}.parquet")
    names = tuple(features.names)
    assignments = Assignments(clusters, settings.k, images.fingerprint, redact_uri(loaded.uri), names)
    assignments.write(path)
    # features go only after the assignments are written, so that an interrupted call can be resumed
    store.remove()
    return Clustered(assignments, path)
