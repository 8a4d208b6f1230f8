"""DeepCluster-v2: clusters of last epoch's embeddings are the classes of this epoch.

Caron, Misra, Mairal, Goyal, Bojanowski and Joulin 2020, arXiv 2006.09882, section 4.1 and appendix D. Before each epoch
spherical k-means runs over a memory bank's embeddings of all images; in the epoch each view is classified by its
cosines with the centroids, so that no layer of classes has to be learned again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Adapts, Count, NotEmpty, Place, Temperature, Width, Within
from raysl.data.order import rank_share
from raysl.hashing import hash_words
from raysl.losses import UNKNOWN, at_least_fp32, cluster_cross_entropy
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.image_clusters import Batches, check_clusters, embed_all
from raysl.nn import COLLAPSE, MemoryBank, batch_collapse, mlp, multi_crop
from raysl.nn.kmeans import kmeans
from raysl.transforms.recipes import MultiCrop


class DeepClusterV2(Method):
    """Classifies views into clusters that are computed before each epoch.

    Attributes:
        assignments: int64 [heads, N], each image's cluster.
    """

    logged = ("cluster_top1", *COLLAPSE)
    assignments: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "deepcluster_v2"
        temperature: Temperature = 0.1
        """Divides the cosines with the centroids (appendix D)."""
        hidden_dim: Width = 2048
        """Width of the projector's hidden layer."""
        output_dim: Width = 128
        """Width of embeddings and centroids."""
        projector_norm: bool = True
        """Batch normalisation before the ReLU of the projector (authors' code; VISSL has none)."""
        clusters: Annotated[tuple[Count, ...], NotEmpty(), Adapts("clusters")] = (3000, 3000, 3000)
        """Clusters of each clustering, whose losses are averaged (appendix D)."""
        kmeans_iters: Annotated[int, Within(1, 1000)] = 10
        """Rounds of k-means before an epoch."""
        bank_crops: Annotated[tuple[Place, ...], NotEmpty()] = (0,)
        """Views whose embeddings are stored, each in a memory bank (4 * output_dim bytes per image, on every rank);
        clusterings take the banks in turn. The paper's code has [0, 1]."""
        views: MultiCrop = field(default_factory=lambda: MultiCrop(min_scale=0.08, num_local=0))
        """Two crops drawn the same way, SimCLR's (section 4.1); small ones may be added."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, num_samples = self.config, setup.data.num_samples
        dims = [backbone.feature_dim, config.hidden_dim, config.output_dim]
        self.projector = mlp(dims, norm=config.projector_norm)
        banks = nn.ModuleList(MemoryBank(num_samples, config.output_dim) for _ in config.bank_crops)
        self.banks = cast(Sequence[MemoryBank], banks)
        for head, k in enumerate(config.clusters):
            self.register_buffer(f"centroids_{head}", torch.zeros(k, config.output_dim))
        self.register_buffer("assignments", torch.full((len(config.clusters), num_samples), UNKNOWN))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse more clusters than images, and a bank of a view that does not exist."""
        method = setup.method
        num_views = method.views.num + method.views.num_local
        check_clusters(max(method.clusters), setup.data.num_samples)
        if max(method.bank_crops) >= num_views:
            raise ConfigError(
                f"method.bank_crops has {max(method.bank_crops)}, but views are numbered from 0 to {num_views - 1}; "
                f"leave it out, or raise method.views.num to {max(method.bank_crops) + 1}"
            )

    def before_epoch(self, step: Step, batches: Batches) -> None:
        """Cluster all images by their embeddings in the banks, which are filled before the first epoch."""
        if step.index == 0:
            self._fill_banks(batches)
        share = rank_share(self.setup.data.num_samples, dist.rank(), dist.world())
        for head, k in enumerate(self.config.clusters):
            rows = self.banks[head % len(self.banks)].bank[share.start : share.stop]
            seed = hash_words(self.setup.seed, step.index, head) >> 1
            centroids, assigned = kmeans(rows, k, self.config.kmeans_iters, seed)
            self._centroids(head).copy_(centroids)
            self.assignments[head].copy_(dist.all_gather_ragged(assigned))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Cross entropy of every view of this rank's images with its image's cluster, mean over views and heads."""
        h = multi_crop(self.backbone, batch.views)  # [B, V, D]
        z = self._embed(h.flatten(0, 1)).view(*h.shape[:2], -1)  # [B, V, P]
        losses, hits = [], []
        for head in range(len(self.config.clusters)):
            clusters = self.assignments[head, batch.index][:, None].expand(z.shape[:2])  # [B, V]
            with torch.autocast(z.device.type, enabled=False):
                scores = z @ self._centroids(head).T  # [B, V, K]
                losses.append(cluster_cross_entropy(scores / self.config.temperature, clusters))
            hits.append((scores.detach().argmax(dim=-1) == clusters).float().mean())
        kept = torch.stack([z[:, crop].detach() for crop in self.config.bank_crops], dim=1)  # [B, banks, P]
        metrics = {"cluster_top1": 100 * torch.stack(hits).mean(), **batch_collapse(z[:, 0])}
        return StepOutput(torch.stack(losses).mean(), metrics, {"z": kept})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Replace the banks' embeddings of the batch's images."""
        index, z = dist.all_gather(batch.index), dist.all_gather(carry["z"])  # [N], [N, banks, P]
        for number, bank in enumerate(self.banks):
            bank.update(index, z[:, number], momentum=0.0)

    def _fill_banks(self, batches: Batches) -> None:
        """Embed every image without augmentation, in evaluation mode, so that ranks may have different batches."""
        self.eval()
        index, z = embed_all(lambda images: self._embed(self.backbone(images)), batches, self.assignments.device)
        self.train()
        index, z = dist.all_gather_ragged(index), dist.all_gather_ragged(z)
        for bank in self.banks:
            bank.update(index, z, momentum=0.0)

    def _embed(self, h: Tensor) -> Tensor:
        return F.normalize(at_least_fp32(self.projector(h)), dim=-1)

    def _centroids(self, head: int) -> Tensor:
        """Return the centroids of a head [K, P]."""
        return self.get_buffer(f"centroids_{head}")
