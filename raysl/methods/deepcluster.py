"""DeepCluster: Deep Clustering for Unsupervised Learning of Visual Features.

Caron, Bojanowski, Joulin and Douze 2018, arXiv 1807.05520. Before each epoch k-means runs over the features of all
images; during the epoch a fresh linear classifier and the backbone learn to predict an image's cluster.

One departure: the paper samples images so that all clusters are seen equally often (section 3.3, "trivial
parametrization"). Here all methods share one order of images, in which each is seen once per epoch, so an image's loss
is weighed by N / (K * size of its cluster) instead, where K counts non-empty clusters: the same gradient in
expectation. The paper's Sobel filters in front of the network, which turn its input into grey edges, are left out.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from raysl.config.ranges import Count, NumClusters, Width, Within
from raysl.hashing import hash_words
from raysl.losses import UNKNOWN, cluster_cross_entropy
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, OptimConfig, Setup, Step, StepOutput
from raysl.methods.shared.image_clusters import Batches, assign, check_clusters, embed_all, feature_clusters
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.optim.groups import split_groups
from raysl.transforms.recipes import Crops


class DeepCluster(Method):
    """Classifies images into clusters that are computed before each epoch, with a fresh classifier.

    Attributes:
        assignments: int64 [N], each image's cluster.
        sizes: int64 [K], images in each cluster.
    """

    logged = ("cluster_top1", "largest_cluster", *COLLAPSE)
    assignments: Tensor
    sizes: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "deepcluster"
        clusters: NumClusters = 10_000
        """Number of clusters (section 4.1, figure 2c)."""
        kmeans_iters: Annotated[int, Within(1, 1000)] = 20
        """Rounds of k-means before an epoch (authors' code)."""
        reassign_every: Count = 1
        """Epochs from one clustering to the next (authors' code); take more if an epoch has few steps."""
        pca_dim: Width = 256
        """Principal components of the features that are whitened and clustered, all if the features have fewer
        (section 3.4, "optimization")."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2, without colours (section 3.4)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        clusters: int = self.config.clusters
        self.classifier = nn.Linear(backbone.feature_dim, clusters)
        self.register_buffer("assignments", torch.full((setup.data.num_samples,), UNKNOWN))
        self.register_buffer("sizes", torch.zeros(clusters, dtype=torch.int64))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse more clusters than images."""
        check_clusters(setup.method.clusters, setup.data.num_samples)

    def before_epoch(self, step: Step, batches: Batches) -> None:
        """Cluster all images by their whitened features of length 1 (section 3.4), and reset the classifier."""
        if step.epoch % self.config.reassign_every:
            return
        # in evaluation mode an image's features do not depend on the other images of its batch
        self.eval()
        index, h = embed_all(self.backbone, batches, self.assignments.device)  # [n], [n, D]
        self.train()
        config, seed = self.config, hash_words(self.setup.seed, step.index) >> 1
        assign(self.assignments, index, feature_clusters(h, config.clusters, config.kmeans_iters, seed, config.pca_dim))
        known = self.assignments[self.assignments != UNKNOWN]
        self.sizes.copy_(torch.bincount(known, minlength=config.clusters))
        # a cluster's number has no meaning in the next clustering, so the classifier begins anew
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return equation 1 of this rank's images, with equal weights for clusters."""
        views = batch.views["global"]  # [B, V, C, H, W]
        h = self.backbone(views.flatten(0, 1))  # [B*V, D]
        logits = self.classifier(h).unflatten(0, views.shape[:2])  # [B, V, K]
        clusters = self.assignments[batch.index][:, None].expand(views.shape[:2])  # [B, V]
        # clamped because UNKNOWN is negative; an image without a cluster has no loss, whatever its weight
        loss = cluster_cross_entropy(logits, clusters, self._weights()[clusters.clamp_min(0)])
        metrics = {
            "cluster_top1": 100 * (logits.argmax(dim=-1) == clusters).float().mean(),
            "largest_cluster": 100 * self.sizes.max() / self.sizes.sum(),
            **batch_collapse(h.unflatten(0, views.shape[:2])[:, 0]),
        }
        return StepOutput(loss, metrics)

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the usual groups; the classifier, fresh in each epoch, has no momentum (authors' code)."""
        head = {id(parameter) for parameter in self.classifier.parameters()}
        groups = []
        for group in split_groups(self, optim):
            classifier = [parameter for parameter in group["params"] if id(parameter) in head]
            others = [parameter for parameter in group["params"] if id(parameter) not in head]
            groups += [{**group, "params": others}, {**group, "params": classifier, "momentum": 0.0}]
        return [group for group in groups if group["params"]]

    def _weights(self) -> Tensor:
        """Return the weight of an image of each cluster in the loss [K]: N / (K' * size), for K' non-empty clusters."""
        sizes = self.sizes.double()
        return sizes.sum() / ((sizes > 0).sum() * sizes).clamp_min(1)
