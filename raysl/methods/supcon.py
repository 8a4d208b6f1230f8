"""SupCon: Supervised Contrastive Learning.

Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu and Krishnan 2020, arXiv 2004.11362. SimCLR with labels: all
views of all images of a class attract each other. Images without a label are contrasted as in SimCLR.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from raysl import distributed as dist
from raysl.losses import sup_con
from raysl.methods.method import Batch, ConfigError, Setup
from raysl.methods.simclr import SimCLR
from raysl.nn.heads import OutputNorm
from raysl.transforms import AutoAugment, MultiCrop, Transform


@dataclass(frozen=True, kw_only=True)
class PolicyCrops(MultiCrop):
    """Crops under a learned policy, with or without SimCLR's colours and blur."""

    policy: Literal["imagenet", "cifar10", "svhn"] | None = None
    """AutoAugment (Cubuk et al. 2019) as learned on this dataset. Default: none."""

    def _chain(self) -> tuple[Transform, ...]:
        chain = super()._chain()
        return chain if self.policy is None else (*chain, AutoAugment(policy=self.policy))


class SupCon(SimCLR):
    """Contrasts views with the whole global batch, with labels."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """The paper's ImageNet settings: temperature and widths are SimCLR's (sections 3.1 and 4)."""

        name: str = "supcon"
        projector_norm: bool = False
        """Batch normalisation before the projector's ReLU; the authors' code has none."""
        output_norm: OutputNorm = "none"
        """Batch normalisation of the embeddings: none, as in the authors' code, plain, with a scale, or affine, with a
        scale and a shift."""
        views: PolicyCrops = field(
            default_factory=lambda: PolicyCrops(
                min_scale=0.08, num_local=0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, policy="imagenet"
            )
        )
        """Two crops drawn the same way under AutoAugment (section 4.1, table 3)."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what SimCLR refuses, and data without labels."""
        super().check(setup)
        if setup.data.num_classes == 0:
            raise ConfigError(
                f"the {setup.data.num_samples} training images have no classes, and SupCon contrasts classes; give "
                "data with labels (and data.label_type=standard), or set method=simclr"
            )

    def _loss(self, z: Tensor, z_all: Tensor, rows: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return sup_con(z, z_all, rows, dist.all_gather(batch.label), self.config.temperature), {}
