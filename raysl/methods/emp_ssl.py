"""EMP-SSL: Towards Self-Supervised Learning in One Training Epoch.

Tong, Chen, Ma and LeCun 2023, arXiv 2304.03977. Many small crops of an image come near their mean, while the embeddings
of each crop fill as much volume as they can over the batch: in few epochs, since an image gives many pairs.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Area, Positive, Width, Within
from raysl.losses import at_least_fp32, coding_rate
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, batch_collapse, features_of_views, mlp
from raysl.transforms import Crops, Mask, RandomResizedCrop, View, ViewRecipe


@dataclass(frozen=True, kw_only=True)
class Patches(Crops):
    """Square crops of one area, whose place alone is random, with colours, blur and solarisation (section 3; the
    authors' code, aug.py).

    >>> Patches(size=32, num=20).recipe().num_views
    20
    """

    num: Annotated[int, Within(1, 256)] = 20
    """Patches of each image; the paper takes 20 to 200."""
    area: Area = 0.25
    """Area of a patch as a share of the image."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.4, 0.2)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1."""
    blur_p: Annotated[float, Within(0, 1)] = 0.1
    """Probability of a Gaussian blur."""
    solarize_p: Annotated[float, Within(0, 1)] = 0.1
    """Probability of inverting the values above a half."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return `num` patches in the group "global"."""
        crop = RandomResizedCrop(
            size=self.size, scale=(self.area, self.area), ratio=(1.0, 1.0), interpolation=self.interpolation
        )
        return ViewRecipe({"global": (View(crop, self._chain(), mask=mask),) * self.num})


class EMPSSL(Method):
    """Patches near their mean, and a large coding rate of each."""

    logged = ("agreement", "coding_rate", *COLLAPSE)
    why_several_views = "EMP-SSL compares patches with their mean"
    why_several_images = "one image fills no volume"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' settings."""

        name: str = "emp_ssl"
        invariance: Amount = 200.0
        """Weight lambda of the cosines of patches with their mean (eq. 3)."""
        eps: Positive = 0.2
        """Distortion that the coding rate allows (eq. 1, which squares it; the authors' code does not)."""
        hidden_dim: Width = 4096
        """Width of the projector's two hidden layers (the authors' code)."""
        output_dim: Width = 1024
        """Width of the embeddings (the authors' code)."""
        views: Patches = field(default_factory=Patches)
        """Patches of a quarter of the image."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        self.projector = mlp([backbone.feature_dim, hidden_dim, hidden_dim, output_dim], norm=True)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 3 with its sign turned, the coding rates over the whole global batch."""
        views = batch.views["global"]  # [B, V, C, H, W]
        h = features_of_views(self.backbone, views, "joint")  # [B, V, D]
        z: Tensor = self.projector(h.flatten(0, 1))
        with torch.autocast(z.device.type, enabled=False):
            z = F.normalize(at_least_fp32(z), dim=-1).view(*h.shape[:2], -1)  # [B, V, E]
            agreement = F.cosine_similarity(z, z.mean(dim=1, keepdim=True), dim=-1).mean()
        rate = self._rate(z)
        loss = -rate - self.config.invariance * agreement
        metrics = {"agreement": agreement.detach(), "coding_rate": rate.detach(), **batch_collapse(z)}
        return StepOutput(loss, metrics)

    def _rate(self, z: Tensor) -> Tensor:
        """Return the mean over patches of the coding rate of all ranks' images (eq. 1)."""
        everyone = dist.all_gather(z, same_loss=True)  # [N, V, E]: one exchange, and less than V matrices [E, E]
        with torch.autocast(z.device.type, enabled=False):
            sums = torch.einsum("nve,nvf->vef", everyone, everyone)  # [V, E, E]
        return coding_rate(sums, len(everyone), self.config.eps).mean()
