"""MIM-Refiner: A Contrastive Learning Boost from Intermediate Pre-Trained Representations.

Alkin, Miklautz, Hochreiter and Brandstetter 2024, arXiv 2402.10093. A ViT that learned from masked images has its best
features some blocks before its end. Heads on the last blocks, each with a contrast of its own, bring these features to
the end: a neighbour of one view among earlier images must find the predictions of the image's other views, while
negatives stay as they are.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import QueueSize, Temperature, Width, Within
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_small_views, grid_side
from raysl.methods.shared.setup_checks import check_batch, check_queue
from raysl.nn import COLLAPSE, Queue, batch_collapse, init_linear, mlp, multi_crop
from raysl.transforms.recipes import AsymmetricMultiCrop


class MIMRefiner(PatchMethod):
    """Contrasts neighbours of large views with predictions of all views, for the class tokens of several blocks.

    Attributes:
        owners: int64 [Q], the image of each row of the queue; -1 for the rows that it begins with.
    """

    logged = ("contrastive_top1", "neighbor_cosine", *COLLAPSE)
    compiles = "no"
    owners: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of the authors' code for a ViT-L/16 that MAE has trained."""

        name: str = "mim_refiner"
        num_heads: Annotated[int, Within(1, 1000)] = 8
        """Heads: one on the class token behind the final layer norm, the others on those of the blocks before the last
        one."""
        temperature: Temperature = 0.2
        """Divides the cosines."""
        num_neighbors: Annotated[int, Within(1, 1000)] = 20
        """Nearest rows of the queue, of which a draw takes one; 1 in the authors' stage that trains heads alone."""
        queue_size: QueueSize = 65536
        """Number of embeddings in the queue of each head."""
        hidden_dim: Width = 2048
        """Width of a projector's two hidden layers."""
        predictor_dim: Width = 4096
        """Width of a predictor's hidden layer."""
        output_dim: Width = 256
        """Width of embeddings and predictions."""
        views: AsymmetricMultiCrop = field(
            default_factory=lambda: AsymmetricMultiCrop(
                min_scale=0.25, interpolation="bicubic", num_local=10, local_scale=(0.05, 0.25)
            )
        )
        """Two large views as in BYOL, and ten small ones."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, width = self.config, self.backbone.token_dim
        depth = self.backbone.num_layers or 0
        self.stages = [*(f"block{number}" for number in range(depth - config.num_heads + 1, depth)), "class"]
        widths = [width, config.hidden_dim, config.hidden_dim, config.output_dim]
        head = partial(mlp, norm=True, activation=nn.GELU, output_norm="affine")
        self.projectors = nn.ModuleList(head(widths) for _ in self.stages)
        widths = [config.output_dim, config.predictor_dim, config.output_dim]
        self.predictors = nn.ModuleList(head(widths) for _ in self.stages)
        init_linear(self.projectors, "mae")
        init_linear(self.predictors, "mae")
        self.queue = Queue(config.queue_size, len(self.stages), config.output_dim)
        self.register_buffer("owners", torch.full((config.queue_size,), -1))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without class tokens of blocks, more heads than blocks, views that patches do not cover or
        that have nothing to be compared with, and queues smaller than a batch or than the neighbours."""
        grid_side(setup, "MIM-Refiner")
        check_small_views(setup, "MIM-Refiner")
        check_batch(setup, "MIM-Refiner contrasts images")
        check_queue(setup, "embeddings would leave before they were anybody's neighbours")
        method, depth = setup.method, setup.backbone.num_layers or 0
        if not {"class", *(f"block{number + 1}" for number in range(depth))} <= setup.backbone.stages.keys():
            raise ConfigError(
                f"backbone {setup.config.backbone.name!r} does not give the class tokens of its blocks, which "
                "MIM-Refiner's heads learn from; set backbone=vit"
            )
        if method.num_heads > depth:
            raise ConfigError(
                f"method.num_heads is {method.num_heads}, and the backbone has {depth} blocks; give at most {depth}"
            )
        if method.views.num + method.views.num_local < 2:
            raise ConfigError(
                "method.views.num is 1 and method.views.num_local is 0; MIM-Refiner compares large views with other "
                "views: give method.views.num=2, or small views"
            )
        if method.num_neighbors > method.queue_size:
            raise ConfigError(
                f"method.num_neighbors is {method.num_neighbors} of a queue of {method.queue_size}; give at most "
                f"{method.queue_size}, or a larger method.queue_size"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the sum of the heads' losses."""
        num_large = batch.views["global"].shape[1]
        h = multi_crop(self._class_tokens, batch.views)  # [B, V, K * W]
        z, p = self._embed(h)  # [B, K, V, D]
        z = F.normalize(at_least_fp32(z[:, :, :num_large].detach()), dim=-1)  # [B, K, G, D]
        everyone, rows = dist.all_gather(at_least_fp32(p)), dist.own_rows(p)  # [N, K, V, D], [B]
        neighbors = self._neighbors(z, batch)  # [B, K, G, D]
        temperature = self.config.temperature
        losses, hits = zip(
            *(
                neighbor_alignment(z[:, n], neighbors[:, n], everyone[:, n], rows, temperature)
                for n in range(len(self.stages))
            ),
            strict=True,
        )
        metrics = {
            "contrastive_top1": 100 * hits[-1],
            "neighbor_cosine": F.cosine_similarity(neighbors[:, -1], z[:, -1], dim=-1).mean(),
            **batch_collapse(z[:, -1, 0]),
        }
        return StepOutput(torch.stack(losses).sum(), metrics, {"z": z[:, :, 0], "index": batch.index})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Put the first views of all ranks into the queues, and note whose they are."""
        rows = dist.all_gather(carry["z"])
        positions = (self.queue.pointer + torch.arange(len(rows), device=rows.device)) % len(self.owners)
        self.owners.index_copy_(0, positions, dist.all_gather(carry["index"]))
        self.queue.push(rows)

    def _class_tokens(self, images: Tensor) -> Tensor:
        """Return the class tokens that the heads get, beside one another [n, K * W]."""
        outputs = self.backbone.stages(images, self.stages).values()
        return torch.cat([tokens if tokens.ndim == 2 else tokens[:, 0] for tokens in outputs], dim=1)

    def _embed(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and predictions [B, K, V, D]; each head normalises all views together."""
        parts = h.flatten(0, 1).chunk(len(self.stages), dim=1)  # K of [B * V, W]
        z = [head(part) for head, part in zip(self.projectors, parts, strict=True)]
        p = [head(rows) for head, rows in zip(self.predictors, z, strict=True)]
        shape = h.shape[:2]
        return torch.stack([rows.unflatten(0, shape) for rows in z], 1), torch.stack(
            [rows.unflatten(0, shape) for rows in p], 1
        )

    @torch.no_grad()
    def _neighbors(self, z: Tensor, batch: Batch) -> Tensor:
        """Return for each embedding [B, K, G, D] one of the nearest rows of its head's queue, none of its own image."""
        num_views, num = z.shape[2], self.config.num_neighbors
        is_own = (batch.index[:, None] == self.owners)[:, None]  # [B, 1, Q]
        draws = batch.random("neighbors").integers_on(z.device, len(self.stages) * num_views, num)
        draws = draws.view(len(z), -1, num_views, 1)  # [B, K, G, 1]
        chosen = []
        with torch.autocast(z.device.type, enabled=False):
            for n, keys in enumerate(self.queue.keys.unbind(1)):
                cosines = (z[:, n] @ keys.to(z.dtype).T).masked_fill_(is_own, -torch.inf)  # [B, G, Q]
                nearest = cosines.topk(num, dim=2).indices.gather(2, draws[:, n])  # [B, G, 1]
                chosen.append(keys[nearest[..., 0]])
        return torch.stack(chosen, dim=1).to(z.dtype)


def neighbor_alignment(
    z: Tensor, neighbors: Tensor, p: Tensor, rows: Tensor, temperature: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Return the nearest neighbour alignment of embeddings (section 3.2), and the share that finds its own image.

    Each large view must pick its image's prediction from another view among those of the whole batch: -log of
    exp(n . p / T) / (exp(n . p / T) + sum over other images' predictions q of exp(z . q / T)), with its neighbour n in
    the numerator and itself, z, against the negatives. Mean over images, large views and other views.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two views each of two images, views alike
    >>> neighbor_alignment(z, -z, z, torch.arange(2), temperature=1.0)[0]  # log((1/e + 1) / (1/e))
    tensor(1.3133)

    Args:
        z: embeddings of this rank's large views [B, G, D], of length 1.
        neighbors: theirs, of length 1 [B, G, D].
        p: predictions from all views of the whole batch [N, V, D], the large ones first; normalised here.
        rows: int64 [B], indices of this rank's images in `p`.
        temperature: above 0.
    """
    with torch.autocast(z.device.type, enabled=False):
        p = F.normalize(p, dim=-1) / temperature
        same_image = torch.einsum("bgd,bvd->bgv", neighbors, p.index_select(0, rows))  # [B, G, V]
        others = torch.einsum("bgd,nvd->bgvn", z, p)
        # the column of the own image gets the neighbour's product; the other columns keep those of the view
        at = rows[:, None, None, None].expand(*same_image.shape, 1)
        logits = others.scatter(3, at, same_image[..., None])  # [B, G, V, N]
        losses = -logits.log_softmax(dim=3).gather(3, at)[..., 0]
        hits = (logits.detach().argmax(dim=3) == rows[:, None, None]).to(losses.dtype)
        is_other = ~torch.eye(*same_image.shape[1:], dtype=torch.bool, device=z.device)  # [G, V]
        num = len(z) * z.shape[1] * (p.shape[1] - 1)
        return (losses * is_other).sum() / num, (hits * is_other).sum() / num
