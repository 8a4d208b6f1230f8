"""W-MSE: Whitening for Self-Supervised Representation Learning.

Ermolov, Siarohin, Sangineto and Sebe 2021, arXiv 2007.06346. Embeddings are whitened, hence spread over all
directions, and then views of an image must agree, which collapsed embeddings could not.
"""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.config.ranges import Width, Within
from raysl.losses import at_least_fp32, negative_cosine
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, ViewNorm, batch_collapse, features_of_views, mlp
from raysl.transforms.device import to_device
from raysl.transforms.recipes import Crops


class WMSE(Method):
    """Agreement of whitened views."""

    logged = ("agreement", *COLLAPSE)
    compiles = "no"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings."""

        name: str = "wmse"
        hidden_dim: Width = 1024
        """Width of the projector's hidden layer (section 4)."""
        output_dim: Width = 64
        """Width of the embeddings (section 4: 64 for CIFAR, 128 for STL-10 and Tiny ImageNet)."""
        sub_batch: Annotated[int, Within(2, 1_000_000)] = 128
        """Images that are whitened together, drawn from the whole global batch: better twice the width of embeddings
        (section 3), and always more than that. A batch that is not a multiple is divided evenly into larger parts, and
        a smaller one is whitened as a whole."""
        whitenings: Annotated[int, Within(1, 100)] = 1
        """Number of random divisions of a batch into sub-batches, whose losses are averaged (section 3)."""
        eps: Annotated[float, Within(0, 1, below=True)] = 0.0
        """Share of the identity in the covariance that is inverted, from the authors' code. Above 0, sub-batches may
        have any number of images from two."""
        batch_norm: ViewNorm = "per_view"
        """Batch normalisation of the backbone: over the images of each view separately, as in the authors' code, or
        over those of all views. The projector always has all views together."""
        views: Crops = field(default_factory=lambda: Crops(blur_p=0.0))
        """Crops drawn the same way, not blurred (authors' code), all pairs of which agree: two or, better, four
        (section 3)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dims = [backbone.feature_dim, self.config.hidden_dim, self.config.output_dim]
        self.projector = mlp(dims, norm=True, last_bias=False)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a single view, and sub-batches of too few images for their covariance to have an inverse."""
        method, plan = setup.method, setup.plan
        if method.views.num < 2:
            raise ConfigError("method.views.num is 1; W-MSE pulls views of an image together: give 2 or 4")
        num_rows, dim = min(method.sub_batch, plan.least_rows), method.output_dim
        if num_rows > dim or (method.eps > 0 and num_rows > 1):
            return
        if method.sub_batch == num_rows:
            where, ways = f"method.sub_batch is {num_rows}", f"set method.sub_batch={2 * dim}"
        elif plan.accumulate > 1:
            where, ways = f"train.accumulate={plan.accumulate} leaves {num_rows} images in a part", "set it to less"
        elif plan.batch_size == num_rows:
            where, ways = f"train.batch_size is {num_rows}", f"set train.batch_size={2 * dim} or more"
        else:
            where, ways = f"the last batch of an epoch has {num_rows} images", "set data.drop_last=true"
        raise ConfigError(
            f"{where} and method.output_dim {dim}: to whiten embeddings takes more images than they have dimensions; "
            f"{ways}, or method.output_dim={max(1, num_rows // 2)}, or method.eps=0.001"
        )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """The loss of section 3 of the whole global batch, the same number on every rank."""
        views = batch.views["global"]  # [B, V, C, H, W]
        h = features_of_views(self.backbone, views, self.config.batch_norm)  # [B, V, H]
        v = self.projector(h.flatten(0, 1)).view(*views.shape[:2], -1)  # [B, V, D]
        everyone = dist.all_gather(at_least_fp32(v), same_loss=True)  # [N, V, D]
        draw = batch.shared("wmse.sub_batches")
        losses = []
        with torch.autocast(v.device.type, enabled=False):
            for _ in range(self.config.whitenings):
                # drawn alike on all ranks, which must divide the batch in the same way
                order = torch.from_numpy(draw.permutation(len(everyone))[0])  # [N]
                shuffled = everyone[to_device(order, everyone.device)]
                parts = shuffled.tensor_split(max(1, len(everyone) // self.config.sub_batch))
                z = torch.cat([whitened(part, self.config.eps) for part in parts])  # [N, V, D]
                losses.append(distance(z))
        loss = torch.stack(losses).mean()
        return StepOutput(loss, {"agreement": 1 - loss.detach() / 2, **batch_collapse(v)})


def whitened(v: Tensor, eps: float = 0.0) -> Tensor:
    """Return z = W (v - mean), where W^T W is the inverse of the covariance and W is from Cholesky (section 3).

    >>> z = whitened(torch.tensor([[[5.0]], [[1.0]], [[3.0]]]))  # three images, one view, one dimension
    >>> z.flatten()
    tensor([ 1., -1.,  0.])

    Args:
        v: embeddings of a sub-batch [n, V, D]; each view is whitened separately.
        eps: share of the identity in the covariance.

    Returns:
        The same shape, each view with mean 0 and identity covariance; NaN if a covariance has no inverse.
    """
    rows = (v - v.mean(dim=0)).transpose(0, 1)  # [V, n, D]
    covariance = rows.mT @ rows / (len(v) - 1)  # [V, D, D]
    covariance = (1 - eps) * covariance + eps * torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
    factor, info = torch.linalg.cholesky_ex(covariance)  # covariance = L L^T, W = L^-1; does not wait for a GPU
    # NaN marks a failure without a look at the flag, for which the host would wait
    factor = factor.masked_fill((info != 0)[:, None, None], torch.nan)
    white: Tensor = torch.linalg.solve_triangular(factor, rows.mT, upper=False)  # [V, D, n]
    return white.permute(2, 0, 1)


def distance(z: Tensor) -> Tensor:
    """Return the squared distance of embeddings [N, V, D] on the sphere, 2 - 2 cos, mean over images and pairs.

    >>> distance(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    tensor(2.)
    """
    pairs = combinations(range(z.shape[1]), 2)
    return 2 + 2 * torch.stack([negative_cosine(z[:, one], z[:, other]) for one, other in pairs]).mean()
