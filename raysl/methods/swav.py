"""SwAV: Unsupervised Learning of Visual Features by Contrasting Cluster Assignments.

Caron, Misra, Mairal, Goyal, Bojanowski and Joulin 2020, arXiv 2006.09882. The large views of an image are assigned to
prototypes, all used equally over the batch; each other view, large or small, predicts the assignment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Adapts, Count, Length, NotEmpty, Place, Temperature, Width, Within
from raysl.losses import at_least_fp32, swapped_prediction
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, StepOutput
from raysl.methods.shared.setup_checks import check_some_views
from raysl.nn import COLLAPSE, Prototypes, Queue, batch_collapse, mlp, multi_crop
from raysl.nn.sinkhorn import sinkhorn
from raysl.schedule import Duration, Step
from raysl.transforms.recipes import MultiCrop


class SwAV(Method):
    """Predicts a view's balanced assignment to prototypes from the other views."""

    logged = ("swapped_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "swav"
        temperature: Temperature = 0.1
        """Divides the scores of a prediction (section 3.1, eq. 2; appendix A)."""
        epsilon: Annotated[float, Within(1e-3, 1e3)] = 0.05
        """Divides the scores of an assignment: smaller values are closer to one prototype per image (eq. 3)."""
        sinkhorn_iters: Annotated[int, Within(0, 1000)] = 3
        """Rounds of balancing the assignments over the batch (eq. 5); 0 leaves a softmax, which collapses."""
        hidden_dim: Width = 2048
        """Width of the projector's hidden layer (appendix A)."""
        output_dim: Width = 128
        """Width of embeddings and prototypes (appendix A)."""
        projector_norm: bool = True
        """Batch normalisation before the ReLU of the projector."""
        prototypes: Annotated[tuple[Count, ...], NotEmpty(), Adapts("clusters")] = (3000,)
        """Number of prototypes (appendix A); several numbers make several heads, whose losses are averaged."""
        freeze_prototypes: Length = field(default=Duration.parse("313st"))
        """How long the prototypes stay frozen at their initial values (appendix A: the first epoch of batch 4096)."""
        hard_until: Length = field(default=Duration.parse("0st"))
        """How long assignments are single prototypes, before they become soft (eq. 3)."""
        queue_length: Annotated[Place, Adapts("queue")] = 0
        """Number of recent embeddings that are assigned together with the batch, a multiple of train.batch_size; for
        small batches (section 3.1, "Working with small batches": 3840 for 256). 0: none."""
        queue_from: Length = field(default=Duration.parse("15ep"))
        """When embeddings start to enter the queue (appendix A)."""
        queue_start: Literal["full", "random"] = "full"
        """When assignments start to use the queue: once it is full of embeddings, as in the paper's code, or from
        `queue_from` on, with its initial random vectors, as in VISSL."""
        views: MultiCrop = field(default_factory=MultiCrop)
        """Two large crops, which are assigned, and six small ones, drawn the same way (appendix A)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        dims = [backbone.feature_dim, config.hidden_dim, config.output_dim]
        self.projector = mlp(dims, norm=config.projector_norm)
        heads = nn.ModuleList(Prototypes(config.output_dim, num) for num in config.prototypes)
        self.prototypes = cast(Sequence[Prototypes], heads)
        self.queue: Queue | None = None
        if config.queue_length:
            self.queue = Queue(config.queue_length, config.views.num, config.output_dim)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a single view, more prototypes than images, and a queue that is not a multiple of the batch."""
        method, batch_size, num_samples = setup.method, setup.plan.batch_size, setup.data.num_samples
        check_some_views(setup, "SwAV predicts the assignment of one view from another")
        if max(method.prototypes) > num_samples:
            raise ConfigError(
                f"method.prototypes has {max(method.prototypes)} for {num_samples} training images, too few to "
                f"use them equally; set {num_samples} or fewer, better {max(1, num_samples // 10)}"
            )
        rest = method.queue_length % batch_size
        if rest:
            below = method.queue_length - rest
            raise ConfigError(
                f"method.queue_length is {method.queue_length}, not a multiple of train.batch_size {batch_size}; set "
                f"{below} or {below + batch_size}" + ("" if below else " (0: no queue)")
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 2 and 6: each view's prediction of the large views' assignments, mean over heads."""
        h = multi_crop(self.backbone, batch.views)  # [B, V, D]
        embeddings = at_least_fp32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2]))
        z = F.normalize(embeddings, dim=-1)  # [B, V, P]
        large = self._large(batch.views["global"], z, step)  # [B, A, P]
        assigned = range(large.shape[1])
        losses, hits = [], []
        for prototypes, assigning in zip(self.prototypes, self._assigning(), strict=True):
            with torch.autocast(z.device.type, enabled=False):
                scores = prototypes(z)  # [B, V, K]
            codes = torch.stack([self._codes(assigning, large[:, crop], crop, step) for crop in assigned], dim=1)
            losses.append(swapped_prediction(scores, codes, assigned, self.config.temperature))
            hits.append(_swapped_top1(scores, codes))
        metrics = {
            "swapped_top1": 100 * torch.stack(hits).mean(),
            **batch_collapse(z[:, 0]),
        }
        return StepOutput(torch.stack(losses).mean(), metrics, {"z": large})

    def after_backward(self, step: Step) -> None:
        """Freeze the prototypes for a while: without a gradient, neither decay nor momentum moves them."""
        if not self.config.freeze_prototypes.is_over(step):
            for prototypes in self.prototypes:
                prototypes.weight.grad = None

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Normalise the prototypes, and put the batch into the queue."""
        for prototypes in self.prototypes:
            prototypes.normalise()
        if self.queue is not None and self._takes_queue(step):
            self.queue.push(dist.all_gather(carry["z"]))

    def _large(self, views: Tensor, z: Tensor, step: Step) -> Tensor:
        """Return the embeddings of large views to assign and to queue, [B, A, P].

        Args:
            views: large views [B, A, C, H, W].
            z: embeddings of all views [B, V, P].
        """
        return z[:, : views.shape[1]].detach()

    def _assigning(self) -> Sequence[Prototypes]:
        """Return each head's prototypes for assignments."""
        return self.prototypes

    @torch.no_grad()
    def _codes(self, prototypes: Prototypes, z: Tensor, crop: int, step: Step) -> Tensor:
        """Return assignments [B, K] of one large view of this rank's images, z [B, P], balanced over batch and
        queue."""
        config, extra, extra_mask = self.config, None, None
        with torch.autocast(z.device.type, enabled=False):
            scores = prototypes(z)  # [B, K]
            if self.queue is not None and self._takes_queue(step):
                extra = prototypes(self.queue.keys[:, crop])  # [Q, K], with the present prototypes
                if config.queue_start == "full":
                    # a mask in place of a branch, so that the host does not wait for the device
                    extra_mask = self.queue.is_filled().all().expand(len(extra))
        is_hard = not config.hard_until.is_over(step)
        return sinkhorn(
            scores,
            config.epsilon,
            config.sinkhorn_iters,
            extra=extra,
            extra_mask=extra_mask,
            is_hard=is_hard,
        )

    def _takes_queue(self, step: Step) -> bool:
        starts: Duration = self.config.queue_from
        return starts.is_over(step)


@torch.no_grad()
def _swapped_top1(scores: Tensor, codes: Tensor) -> Tensor:
    """Return the share of predictions from other views whose most likely prototype is the assigned one."""
    num_codes, num_views = codes.shape[1], scores.shape[1]
    is_same = codes.argmax(dim=-1)[:, :, None] == scores.argmax(dim=-1)[:, None]  # [B, A, V]
    is_self = torch.eye(num_codes, num_views, dtype=torch.bool, device=scores.device)
    return is_same.masked_fill(is_self, False).float().mean() * (num_views / (num_views - 1))
