"""MoCo: Momentum Contrast for Unsupervised Visual Representation Learning.

He, Fan, Wu, Xie and Girshick 2019, arXiv 1911.05722 (v1); Chen, Fan, Girshick and He 2020, arXiv 2003.04297 (v2). The
query of one view must find the key of the other view among a queue of older keys. Keys come from a teacher that follows
the query's network slowly, so that keys in the queue stay comparable.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Momentum, QueueSize, Temperature, Width
from raysl.config.schema import MethodConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32, info_nce
from raysl.methods.method import Method, StepOutput
from raysl.methods.shared.setup_checks import check_queue, check_two_views
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.batch_norm import in_shuffled_order
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.nn.ema import Teacher
from raysl.nn.heads import mlp
from raysl.nn.queue import Queue
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.recipes import Crops


class MoCo(Method):
    """Contrasts a query with a queue of keys from a teacher."""

    logged: ClassVar[tuple[str, ...]] = ("contrastive_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The ImageNet settings of v2; those of v1 are in `configs/imagenet/moco_v1.yaml`."""

        name: str = "moco"
        temperature: Temperature = 0.2
        """Divides the cosines (v2, table 2; v1 has 0.07)."""
        hidden_dims: tuple[Width, ...] = (2048,)
        """Widths of the projector's hidden layers (v2, section 3); [] for the linear projector of v1."""
        output_dim: Width = 128
        """Width of the embeddings (v1, section 3.3)."""
        queue_size: QueueSize = 65536
        """Number of keys in the queue (v1, section 4.1); best at most the number of images, whose own older keys would
        be negatives otherwise."""
        momentum: Momentum = 0.999
        """Share of the teacher that an update keeps (v1, eq. 2 and section 4.1)."""
        key_bn: Literal["shuffle", "sync", "eval"] = "shuffle"
        """Batch normalisation of keys, which must not reveal a key's query: over the rows of one worker in a shuffled
        order (v1, section 3.3; with train.sync_bn=false), over the rows of all workers (with train.sync_bn=true), or
        with the running statistics of the query's network."""
        views: Crops = field(default_factory=lambda: Crops(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1)))
        """Two crops drawn the same way, the first for the query (v2, section 3)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.projector = self._new_projector(backbone.feature_dim)
        buffers: Literal["own", "copy"] = "copy" if self.config.key_bn == "eval" else "own"
        self.teacher = Teacher(self.student(), buffers)
        self.queue = Queue(self.config.queue_size, self.config.output_dim)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse numbers of views other than two, a queue smaller than a batch, and a normalisation of keys that
        contradicts `train.sync_bn`."""
        check_two_views(setup, "MoCo takes a query and a key")
        check_queue(setup, "keys would leave before a query met them")
        method, is_sync = setup.method, setup.config.train.sync_bn
        # With one worker both statistics are the same.
        if method.key_bn == "shuffle" and is_sync and setup.config.train.most_workers > 1:
            raise ConfigError(
                "method.key_bn=shuffle is for statistics of each worker's rows, and train.sync_bn=true takes those of "
                "all; set train.sync_bn=false, or method.key_bn=sync"
            )
        if method.key_bn == "sync" and not is_sync:
            raise ConfigError(
                "method.key_bn=sync takes statistics of all workers' rows; set train.sync_bn=true, or method.key_bn="
                "shuffle"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return InfoNCE of this rank's queries against their keys and the queue (v1, eq. 1 and algorithm 1)."""
        views = batch.views["global"]  # [B, 2, C, H, W]
        q = at_least_fp32(self.projector(self.backbone(views[:, 0])))  # [B, D]
        k = self._keys(views[:, 1], batch)  # [B, D]
        loss, terms = self._loss(q, k)
        metrics = {
            "contrastive_top1": 100 * self._accuracy(q, k),
            **terms,
            **batch_collapse(q),
        }
        return StepOutput(loss, metrics, {"keys": k})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Queue the keys of all ranks, and let the teacher follow before the next step's keys, as in the paper."""
        self.queue.push(dist.all_gather(carry["keys"]))
        self.teacher.update(self.student(), self.config.momentum)

    def _loss(self, q: Tensor, k: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of queries and their keys [B, D], and its terms for the log."""
        return info_nce(q, k, self.queue.keys, self.config.temperature), {}

    @torch.no_grad()
    def _keys(self, images: Tensor, batch: Batch) -> Tensor:
        """Return the keys of this rank's images [B, D], of length 1."""
        if self.config.key_bn == "eval":
            self.teacher.eval()
        if self.config.key_bn != "shuffle":
            return F.normalize(at_least_fp32(self.teacher(images)), dim=-1)
        return F.normalize(at_least_fp32(in_shuffled_order(self.teacher, images, batch, "moco.shuffle")), dim=-1)

    @torch.no_grad()
    def _accuracy(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the share of queries nearer to their key than to every key of the queue."""
        with torch.autocast(q.device.type, enabled=False):
            positives = (q * k).sum(dim=-1)  # [B], times the length of q
            negatives = q @ self.queue.keys.to(q.dtype).T  # [B, K], times the same length
            return (positives > negatives.amax(dim=-1)).float().mean()

    def _new_projector(self, dim: int) -> nn.Sequential:
        """Return a projector of features [B, dim] with initial weights."""
        return mlp([dim, *self.config.hidden_dims, self.config.output_dim])
