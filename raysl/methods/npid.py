"""NPID: Unsupervised Feature Learning via Non-Parametric Instance Discrimination.

Wu, Xiong, Yu and Lin 2018, arXiv 1805.01978. Each image is a class of its own, whose weights are its embedding in a
memory bank: noise-contrastive estimation tells the image's row from rows of other images.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.ranges import Count, Momentum, Temperature, Width
from raysl.losses import at_least_fp32, bank_cross_entropy, nce, nce_log_norm, self_normalised_nce
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, MemoryBank, batch_collapse
from raysl.transforms.recipes import Crops


class NPID(Method):
    """Recognises each image among others in a memory bank."""

    logged: ClassVar[tuple[str, ...]] = ("contrastive_top1", *COLLAPSE)
    compiles = "no"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "npid"
        temperature: Temperature = 0.07
        """Divides the cosines (section 3.1, "concentration level", and section 4)."""
        output_dim: Width = 128
        """Width of the embeddings and of the bank, which takes 4 bytes times this for each image (section 4.2)."""
        num_negatives: Count = 4096
        """Rows of the bank that an image is compared with, drawn with replacement (section 3.2)."""
        momentum: Momentum = 0.5
        """Share of a row of the bank that an update keeps."""
        projector_norm: bool = False
        """Batch normalisation of the embeddings without scale and shift, for small datasets, where the direction that
        all images share would dominate; the paper has none."""
        loss: Literal["nce", "self_normalised", "cross_entropy"] = "nce"
        """Noise-contrastive estimation with a constant Z from the first batch (section 3.2), the same with Z from
        each image's own negatives, or the cross entropy of picking the image's row."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, jitter=(0.4, 0.4, 0.4, 0.4), jitter_p=1.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop of each image, with colours (VISSL's transforms of this method)."""

    log_norm: Tensor

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.projector = self._head(backbone.feature_dim)
        self.bank = MemoryBank(setup.data.num_samples, self.config.output_dim)
        self.register_buffer("log_norm", torch.zeros(()))  # log Z, set in the first step

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse other numbers of views than one, and a dataset of a single image."""
        num_samples, num_views = setup.data.num_samples, setup.method.views.num
        if num_samples < 2:
            raise ConfigError(
                f"there is {num_samples} training image; {cls.__name__} tells images apart: give at least 2"
            )
        if num_views != 1:
            raise ConfigError(
                f"method.views.num is {num_views}; {cls.__name__} compares one view with the memory bank: set it to 1"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the NCE of this rank's images against rows of the bank (section 3.2, eq. 4 to 8)."""
        z = at_least_fp32(self.projector(self.backbone(batch.views["global"][:, 0])))  # [B, D]
        picked = self._sample_rows(batch, "npid.negatives")  # [B, 1 + K]
        rows = self.bank.rows(picked)  # [B, 1 + K, D]
        carry = {"z": z.detach()}
        # Z is estimated from the first batch and kept from then on (section 3.2)
        if step.index == 0:
            carry["log_norms"] = nce_log_norm(z, rows, len(self.bank.bank), self.config.temperature)  # [B]
        loss = self._loss(z, rows, self._mean_norm(carry) if step.index == 0 else self.log_norm)
        metrics = {
            "contrastive_top1": 100 * self._accuracy(z, rows, picked),
            **batch_collapse(z),
        }
        return StepOutput(loss, metrics, carry)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Store the step's embeddings in the bank, and after the first step the constant Z."""
        if step.index == 0:
            self.log_norm.copy_(self._mean_norm(carry))
        self.bank.update(dist.all_gather(batch.index), dist.all_gather(carry["z"]), self.config.momentum)

    def _head(self, width: int) -> nn.Sequential:
        """Return a linear layer to embeddings (section 4), optionally normalised."""
        dim, has_norm = self.config.output_dim, self.config.projector_norm
        norm: nn.Module = nn.BatchNorm1d(dim, affine=False) if has_norm else nn.Identity()
        return nn.Sequential(nn.Linear(width, dim, bias=not has_norm), norm)

    def _sample_rows(self, batch: Batch, slot: str) -> Tensor:
        """Return sample indices [B, 1 + K]: each image's index and K drawn from all images, possibly itself."""
        random, device = batch.random(slot), batch.index.device
        negatives = random.integers_on(device, self.config.num_negatives, len(self.bank.bank))
        return torch.cat([batch.index[:, None], negatives], dim=1)

    def _loss(self, z: Tensor, rows: Tensor, log_norm: Tensor) -> Tensor:
        temperature = self.config.temperature
        if self.config.loss == "cross_entropy":
            return bank_cross_entropy(z, rows, temperature)
        if self.config.loss == "self_normalised":
            return self_normalised_nce(z, rows, temperature)
        return nce(z, rows, log_norm, len(self.bank.bank), temperature)

    @staticmethod
    def _mean_norm(carry: dict[str, Tensor]) -> Tensor:
        """Return log Z, the mean of Z over the images of all ranks (section 3.2)."""
        log_norms = dist.all_gather(carry["log_norms"])  # [N]
        return torch.logsumexp(log_norms, dim=0) - math.log(len(log_norms))

    @staticmethod
    @torch.no_grad()
    def _accuracy(z: Tensor, rows: Tensor, picked: Tensor) -> Tensor:
        """Return the share of images nearer to their own row than to each drawn row of another image."""
        with torch.autocast(z.device.type, enabled=False):
            scores = torch.einsum("bkd,bd->bk", rows.to(z.dtype), z)  # [B, 1 + K], times the length of z
            others = scores[:, 1:].masked_fill(picked[:, 1:] == picked[:, :1], -torch.inf)
            return (scores[:, 0] > others.amax(dim=1)).float().mean()
