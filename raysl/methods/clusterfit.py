"""ClusterFit: Improving Generalization of Visual Representations.

Yan, Misra, Gupta, Ghadiyaram and Mahajan 2019, arXiv 1912.03330. k-means clusters a pre-trained network's
features of all images; a new network, from random weights, then learns to predict the cluster of an image.

The clusters come from a file of `raysl cluster`, or are computed before the first step with the backbone of another
run. Without either, the pixels of shrunk images are clustered: a mere trial, since the paper's ClusterFit gains from
the pre-trained network.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from raysl.config.ranges import Location, NumClusters, Width, Within
from raysl.data.assignments import read_assignments
from raysl.errors import log
from raysl.hashing import hash_words
from raysl.losses import UNKNOWN, cluster_cross_entropy
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.image_clusters import Batches, assign, check_clusters, embed_all, feature_clusters
from raysl.methods.shared.teacher_networks import read_teacher
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.nn.pooling import RawPixels
from raysl.transforms.recipes import Crops


class ClusterFit(Method):
    """Classifies images into clusters of another network's features.

    Attributes:
        assignments: int64 [N], each image's cluster.
    """

    logged = ("cluster_top1", *COLLAPSE)
    assignments: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of VISSL's model on clusters of RotNet's features on ImageNet."""

        name: str = "clusterfit"
        teacher: Location | None = None
        """Run or checkpoint of raysl, a path or a URI that all workers can read, whose backbone's features of the
        run's images are clustered before the first step (section 3, "cluster")."""
        assignments: Location | None = None
        """File of `raysl cluster` with the clusters of the run's images, instead of a teacher."""
        clusters: NumClusters = 16_000
        """Number of clusters (VISSL; section 5.3 tries 100 to 35 000)."""
        kmeans_iters: Annotated[int, Within(1, 1000)] = 50
        """Rounds of k-means (VISSL)."""
        pca_dim: Width | None = None
        """Principal components of the features that are whitened and clustered, all if the features have fewer.
        Default: the features themselves."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, jitter=(0.4, 0.4, 0.4, 0.2), jitter_p=1.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop, mirrored with probability 1/2, with colours (VISSL)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.classifier = nn.Linear(backbone.feature_dim, self.config.clusters)
        self.register_buffer("assignments", torch.full((setup.data.num_samples,), UNKNOWN))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse more clusters than images, two sources of clusters, and clusters of other images or another number."""
        config = setup.method
        check_clusters(config.clusters, setup.data.num_samples)
        if config.teacher is not None and config.assignments is not None:
            raise ConfigError(
                "method.teacher and method.assignments are both set, and each defines the clusters; leave one out"
            )
        if config.assignments is not None:
            stored = read_assignments(config.assignments)
            stored.check(setup.data.num_samples, setup.data.fingerprint)
            if stored.num_clusters != config.clusters:
                raise ConfigError(
                    f"method.clusters is {config.clusters}, and {config.assignments} has {stored.num_clusters}; "
                    f"set method.clusters={stored.num_clusters}"
                )
        elif config.teacher is not None:
            read_teacher(setup)
        else:
            log.warning(
                "method.teacher and method.assignments are not set: the clusters are those of pixels. ClusterFit "
                "learns from a pre-trained network; give method.teacher=RUN"
            )

    def before_epoch(self, step: Step, batches: Batches) -> None:
        """Read or compute the clusters, once."""
        # clusters are made once; a run that goes on has them from its checkpoint
        if step.index > 0:
            return
        if self.config.assignments is not None:
            self.assignments.copy_(read_assignments(self.config.assignments).clusters)
            return
        teacher: nn.Module = RawPixels() if self.config.teacher is None else read_teacher(self.setup).backbone
        teacher = teacher.to(self.assignments.device).eval()
        index, h = embed_all(lambda images: teacher(images.float()), batches, self.assignments.device)
        seed = hash_words(self.setup.seed, step.index) >> 1
        config = self.config
        assign(self.assignments, index, feature_clusters(h, config.clusters, config.kmeans_iters, seed, config.pca_dim))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Cross entropy of this rank's images with their clusters (section 3, "fit")."""
        views = batch.views["global"]  # [B, V, C, H, W]
        h = self.backbone(views.flatten(0, 1))  # [B*V, D]
        logits = self.classifier(h).unflatten(0, views.shape[:2])  # [B, V, K]
        clusters = self.assignments[batch.index][:, None].expand(views.shape[:2])  # [B, V]
        metrics = {
            "cluster_top1": 100 * (logits.argmax(dim=-1) == clusters).float().mean(),
            **batch_collapse(h.unflatten(0, views.shape[:2])[:, 0]),
        }
        return StepOutput(cluster_cross_entropy(logits, clusters), metrics)
