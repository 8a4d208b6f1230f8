"""SMoG: Unsupervised Visual Representation Learning by Synchronous Momentum Grouping.

Pang, Zhang, Li, Cai and Lu 2022, arXiv 2207.06167. A view must find the group of its image among all groups, as views
find images in contrastive learning. Groups are slow averages of the embeddings that are nearest to them, brought up to
date with the batch before it is contrasted, so that the gradient flows through them, too. Now and then k-means over
recent embeddings makes all groups anew.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Every, Momentum, NumClusters, QueueSize, Temperature, Width, Within
from raysl.data.order import rank_share
from raysl.hashing import hash_words
from raysl.losses import at_least_fp32, cluster_cross_entropy
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, StepOutput
from raysl.methods.shared.setup_checks import check_batch, check_queue, check_two_views
from raysl.nn import COLLAPSE, Queue, Teacher, batch_collapse, mlp
from raysl.nn.kmeans import kmeans
from raysl.process.screen import counted
from raysl.schedule import Duration, Step
from raysl.transforms.recipes import Crops


class SMoG(Method):
    """Finds the group of a slow copy's embedding among groups that move with the batch.

    Attributes:
        groups: [K, D], of any length; directions count.
    """

    logged: ClassVar[tuple[str, ...]] = ("group_top1", "groups_used", *COLLAPSE)
    groups: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The ImageNet settings of the paper and of lightly's SMoG."""

        name: str = "smog"
        temperature: Temperature = 0.1
        """Divides the cosines of predictions and groups (lightly's default)."""
        num_groups: NumClusters = 3000
        """Number of groups."""
        group_momentum: Momentum = 0.99
        """Share beta of a group that an update keeps, if embeddings of the batch belong to it."""
        hidden_dim: Width = 2048
        """Width of the hidden layers of projector and predictor."""
        output_dim: Width = 128
        """Width of embeddings, predictions and groups."""
        momentum: Momentum = 0.99
        """Share of the teacher that an update keeps (lightly's example)."""
        reset_every: Every = field(default=Duration.parse("300st"))
        """How often k-means makes all groups anew, and the teacher becomes a copy (table 7b)."""
        queue_size: QueueSize = 76_800
        """Number of recent embeddings for k-means (lightly's example: 300 batches of 256)."""
        kmeans_iters: Annotated[int, Within(1, 1000)] = 10
        """Rounds of k-means."""
        views: Crops = field(
            default_factory=lambda: Crops(min_scale=0.2, jitter=(0.4, 0.4, 0.2, 0.1), jitter_p=1.0, blur_p=0.5)
        )
        """Two crops drawn the same way, the second for the teacher (the large views of lightly's `SMoGTransform`)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        hidden_dim, output_dim = config.hidden_dim, config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, output_dim], norm=True, output_norm="plain")
        self.predictor = mlp([output_dim, hidden_dim, output_dim], norm=True)
        self.teacher = Teacher(self.student())
        self.queue = Queue(config.queue_size, output_dim)
        self.register_buffer("groups", F.normalize(torch.randn(config.num_groups, output_dim), dim=1))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse numbers of views other than two, and fewer embeddings than groups when k-means begins."""
        check_two_views(setup, "SMoG takes one for the student and one for the teacher")
        check_batch(setup, "the projector normalises over the batch")
        check_queue(setup, "embeddings would leave before k-means saw them")
        method, plan = setup.method, setup.plan
        steps = max(1, method.reset_every.steps(plan.total_steps, plan.epoch_len))
        num_rows = min(method.queue_size, steps * plan.batch_size)
        if steps < plan.total_steps and num_rows < method.num_groups:
            raise ConfigError(
                f"method.num_groups is {method.num_groups}, and k-means begins with {counted(num_rows, 'embedding')}: "
                f"those of {counted(steps, 'step')}, at most method.queue_size; give at most {num_rows} groups, better "
                "a tenth of it"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the cross entropy of the predictions of first views with the groups of second views, as they are
        before the batch; predictions are compared with the groups as they are after it."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z = self.projector(self.backbone(first))  # [B, D]
        p = self.predictor(z)  # [B, D]
        targets = nearest_group(self.teacher(second), self.groups)  # [B]
        everyone = dist.all_gather(F.normalize(at_least_fp32(z), dim=-1))  # [N, D]
        members = memberships(everyone, self.groups)  # [K, N]
        # gradients reach the embeddings of all images through the groups that they have moved
        groups = moved_groups(self.groups, everyone, members, self.config.group_momentum)  # [K, D]
        with torch.autocast(p.device.type, enabled=False):
            scores = F.normalize(at_least_fp32(p), dim=-1) @ F.normalize(groups, dim=-1).T  # [B, K]
            loss = cluster_cross_entropy(scores / self.config.temperature, targets)
        metrics = {
            "group_top1": 100 * (scores.detach().argmax(dim=1) == targets).float().mean(),
            "groups_used": members.any(dim=1).float().sum(),
            **batch_collapse(z),
        }
        return StepOutput(loss, metrics, {"z": at_least_fp32(z.detach())})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Move the groups with the embeddings of all ranks, and let the teacher follow; or make both anew."""
        z = F.normalize(dist.all_gather(carry["z"]), dim=-1)  # [N, D]
        self.queue.push(z)
        if self.config.reset_every.is_due(step.next()):
            self._reset(step)
            return
        moved = moved_groups(self.groups, z, memberships(z, self.groups), self.config.group_momentum)
        self.groups.copy_(moved)
        self.teacher.update(self.student(), self.config.momentum)

    def _reset(self, step: Step) -> None:
        """Cluster the queue, of which each rank takes its share, and copy the student."""
        share = rank_share(int(self.queue.num_filled), dist.rank(), dist.world())
        rows = self.queue.keys[share.start : share.stop]
        seed = hash_words(self.setup.seed, step.index) >> 1
        self.groups.copy_(kmeans(rows, self.config.num_groups, self.config.kmeans_iters, seed)[0])
        self.teacher.update(self.student(), 0.0)


@torch.no_grad()
def nearest_group(z: Tensor, groups: Tensor) -> Tensor:
    """Return the index of the group [K, D] with the largest cosine for each embedding [B, D], int64 [B].

    >>> nearest_group(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 1.0], [0.1, 0.2]]))
    tensor([1])
    """
    with torch.autocast(z.device.type, enabled=False):
        z = at_least_fp32(z)
        return (z @ F.normalize(groups.to(z.dtype), dim=-1).T).argmax(dim=1)


def memberships(z: Tensor, groups: Tensor) -> Tensor:
    """Return whether each group [K, D] is the nearest one of each embedding [N, D], bool [K, N].

    >>> memberships(torch.eye(2), torch.tensor([[2.0, 1.0], [1.0, 2.0], [-1.0, 0.0]])).int().tolist()
    [[1, 0], [0, 1], [0, 0]]
    """
    return nearest_group(z, groups) == torch.arange(len(groups), device=z.device)[:, None]


def moved_groups(groups: Tensor, z: Tensor, members: Tensor, momentum: float) -> Tensor:
    """Return momentum * group + (1 - momentum) * the mean of its embeddings; groups without any stay as they are.

    Gradients flow into the embeddings.

    >>> moved_groups(torch.eye(2), torch.tensor([[0.0, 1.0]]), torch.tensor([[True], [False]]), momentum=0.9)
    tensor([[0.9000, 0.1000],
            [0.0000, 1.0000]])

    Args:
        groups: [K, D].
        z: embeddings of the whole batch [N, D].
        members: membership of rows in groups, bool [K, N].
    """
    with torch.autocast(z.device.type, enabled=False):
        groups, shares = groups.to(z.dtype), members.to(z.dtype)
        counts = shares.sum(dim=1, keepdim=True)  # [K, 1]
        means = shares @ z / counts.clamp(min=1)
        return torch.where(counts > 0, momentum * groups + (1 - momentum) * means, groups)
