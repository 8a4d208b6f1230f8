"""All4One: Symbiotic Neighbour Contrastive Learning via Self-Attention and Redundancy Reduction.

Estepa, Sarasúa, Nagarajan and Radeva 2023, arXiv 2303.09417. Three objectives in one: the nearest neighbour of an
embedding finds the other view's prediction, as in NNCLR; so does the centroid that self-attention makes of several
neighbours, whose counterpart has the prediction in front and the farthest one left out; and the dimensions of student
and teacher correlate each with itself alone. Neighbours come from a queue of the teacher's embeddings.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Momentum, QueueSize, Share, Temperature, Width, Within
from raysl.losses import at_least_fp32, off_diagonal_squares
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, OptimConfig, Setup, StepOutput
from raysl.methods.shared.setup_checks import check_batch, check_queue, check_two_views
from raysl.nn import COLLAPSE, Queue, Teacher, batch_collapse, mlp, products, unit_columns
from raysl.nn.encoder import EncoderLayer, position_waves
from raysl.optim.groups import split_groups, with_lr_scales
from raysl.schedule import Step, cosine
from raysl.transforms.recipes import AsymmetricCrops


class All4One(Method):
    """Contrasts neighbours, centroids of neighbours, and dimensions."""

    logged: ClassVar[tuple[str, ...]] = (
        "centroid_loss", "neighbor_loss", "feature_loss", "contrastive_top1", "neighbor_cosine", *COLLAPSE,
    )  # fmt: skip
    positions: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the authors' code in solo-learn."""

        name: str = "all4one"
        temperature: Temperature = 0.2
        """Divides the cosines of neighbours and predictions."""
        centroid_temperature: Temperature = 0.1
        """Divides the cosines of centroids; the same in all configurations of the code."""
        feature_weight: Amount = 10.0
        """Factor of the feature objective, before the three are halved and added."""
        queue_size: QueueSize = 65536
        """Number of the teacher's embeddings to find neighbours in."""
        num_neighbors: Annotated[int, Within(1, 1000)] = 5
        """Neighbours that a centroid is made of."""
        hidden_dim: Width = 2048
        """Width of the projector's two hidden layers."""
        output_dim: Width = 256
        """Width of embeddings and predictions, a multiple of `heads`."""
        predictor_dim: Width = 4096
        """Width of the hidden layer of both predictors."""
        num_layers: Annotated[int, Within(1, 100)] = 3
        """Layers of self-attention that make a centroid."""
        heads: Annotated[int, Within(1, 256)] = 8
        """Heads of each."""
        dropout: Annotated[float, Within(0, 1, below=True)] = 0.1
        """Share of values that these layers drop in training."""
        encoder_lr_scale: Amount = 0.1
        """Factor of their learning rate: 0.1 in the code, where the others have 1.0 for 256 images."""
        momentum: Momentum = 0.99
        """Share of the teacher that the first update keeps."""
        final_momentum: Share = 1.0
        """That share at the end of the run, approached along half a cosine."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops, distorted as in BYOL."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        dim, hidden = config.output_dim, config.hidden_dim
        self.projector = mlp([backbone.feature_dim, hidden, hidden, dim], norm=True, output_norm="affine")
        self.predictor = mlp([dim, config.predictor_dim, dim], norm=True)
        self.centroid_predictor = mlp([dim, config.predictor_dim, dim], norm=True)
        layers = (EncoderLayer(dim, config.heads, 2 * dim, config.dropout, n) for n in range(config.num_layers))
        self.encoder = nn.Sequential(*layers)
        self.register_buffer("positions", position_waves(config.num_neighbors, dim), persistent=False)
        self.teacher = Teacher(self.student())
        self.queue = Queue(config.queue_size, dim)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse numbers of views other than two, a queue smaller than a batch or than the neighbours, heads that do
        not divide the embeddings, and a teacher that speeds up."""
        check_two_views(setup, "All4One contrasts two views")
        check_batch(setup, "All4One contrasts images")
        check_queue(setup, "embeddings would leave before they were anybody's neighbours")
        method = setup.method
        if method.num_neighbors > method.queue_size:
            raise ConfigError(
                f"method.num_neighbors is {method.num_neighbors} of a queue of {method.queue_size}; give at most "
                f"{method.queue_size}, or a larger method.queue_size"
            )
        if method.output_dim % method.heads:
            raise ConfigError(
                f"method.output_dim is {method.output_dim}, not a multiple of method.heads {method.heads}; give "
                f"{(method.output_dim // method.heads + 1) * method.heads}, or a number of heads that divides it"
            )
        if method.final_momentum < method.momentum:
            raise ConfigError(
                f"method.final_momentum is {method.final_momentum} and method.momentum {method.momentum}: the teacher "
                f"must slow down; give {method.momentum} or more, 1 in the code"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return half the sum of the three objectives, each of both directions."""
        views = batch.views["global"].unbind(1)  # [B, C, H, W] each
        z = [self.projector(self.backbone(view)) for view in views]  # [B, D] each
        p, q = [self.predictor(rows) for rows in z], [self.centroid_predictor(rows) for rows in z]
        targets = [F.normalize(at_least_fp32(self.teacher(view)), dim=-1) for view in views]
        near = [self.queue.several_nearest(rows, self.config.num_neighbors) for rows in targets]  # [B, k, D] each
        # the prediction goes in front and the farthest neighbour drops out, so that both sequences have k rows
        replaced = [torch.cat([q[n][:, None].to(near[n].dtype), near[n][:, :-1]], dim=1) for n in (0, 1)]
        centroids = self._centroids(torch.stack([*near, *replaced], dim=1))  # [B, 4, D]
        whole, mixed = (part.unbind(1) for part in centroids.chunk(2, dim=1))
        pairs = (0, 1), (1, 0)
        centroid = [self._contrast(whole[n], mixed[m], self.config.centroid_temperature)[0] for n, m in pairs]
        of_pairs = [self._contrast(near[n][:, 0], p[m], self.config.temperature) for n, m in pairs]
        terms = {
            "centroid_loss": centroid[0] / 2 + centroid[1] / 2,
            "neighbor_loss": of_pairs[0][0] / 2 + of_pairs[1][0] / 2,
            "feature_loss": self.config.feature_weight * feature_loss(torch.stack(z, 1), torch.stack(targets, 1)),
        }
        metrics = {name: term.detach() for name, term in terms.items()} | {
            "contrastive_top1": 50 * (of_pairs[0][1] + of_pairs[1][1]),
            "neighbor_cosine": F.cosine_similarity(near[0][:, 0], targets[0], dim=-1).mean(),
            **batch_collapse(z[0]),
        }
        return StepOutput(torch.stack(list(terms.values())).sum() / 2, metrics, {"z": targets[0]})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Put the teacher's embeddings of all ranks' first views into the queue, and let the teacher follow."""
        self.queue.push(dist.all_gather(carry["z"]))
        momentum = cosine(step.progress, self.config.momentum, self.config.final_momentum)
        self.teacher.update(self.student(), momentum)

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return the usual groups, with a smaller learning rate of the self-attention."""
        scales = {id(parameter): self.config.encoder_lr_scale for parameter in self.encoder.parameters()}
        return with_lr_scales(split_groups(self, optim), scales)

    def _centroids(self, rows: Tensor) -> Tensor:
        """Return what self-attention makes of the first of k rows [B, n, k, D], [B, n, D]."""
        tokens: Tensor = self.encoder((rows + self.positions.to(rows.dtype)).flatten(0, 1))
        return tokens[:, 0].view(*rows.shape[:2], -1)

    def _contrast(self, z: Tensor, p: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the cross entropy of this rank's rows, which must pick their image's among those of the whole batch
        from the other view, and the share of those that do."""
        everyone, rows = dist.all_gather(at_least_fp32(p)), dist.own_rows(p)  # [N, D], [B]
        with torch.autocast(p.device.type, enabled=False):
            z = F.normalize(z.to(everyone.dtype), dim=-1)
            logits = z @ F.normalize(everyone, dim=-1).T / temperature  # [B, N]
            hits = logits.detach().argmax(dim=1) == rows
            return F.cross_entropy(logits, rows), hits.float().mean()


def feature_loss(z: Tensor, targets: Tensor) -> Tensor:
    """Return how far the dimensions of one view's targets are from correlating with the same dimension of the other
    view's embeddings alone: half the root mean square of 1 - diagonal, and half that of the other correlations.

    They are cosines of columns over the rows of all ranks; both directions are averaged below the roots.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two images, two equal views, two dimensions
    >>> feature_loss(z, z), feature_loss(z, -z)
    (tensor(0.), tensor(1.))

    Args:
        z: embeddings of this rank's images [B, 2, D].
        targets: those of the teacher [B, 2, D].
    """
    with torch.autocast(z.device.type, enabled=False):
        z, targets = unit_columns(z), unit_columns(targets)
        correlations = [products(targets[:, n], z[:, 1 - n], same_loss=True) for n in (0, 1)]  # [D, D] each
        width = z.shape[2]
        same = torch.stack([(1 - c.diagonal()).square().mean() for c in correlations]).mean()
        # a mean over the entries off the diagonal; one dimension has none, and `max` then avoids 0 / 0
        others = torch.stack([off_diagonal_squares(c) for c in correlations]).mean() / max(width * (width - 1), 1)
        return same.sqrt() / 2 + others.sqrt() / 2
