"""SimCLR: A Simple Framework for Contrastive Learning of Visual Representations.

Chen, Kornblith, Norouzi and Hinton 2020, arXiv 2002.05709. Two random views of an image attract each other and repel
those of every other image in the batch: backbone, a two-layer projector, and a cross entropy over cosines. With more
views, also small ones (`configs/imagenet/simclr_multicrop.yaml`), each attracts all others of its image.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from raysl import distributed as dist
from raysl.config.ranges import Temperature, Width
from raysl.losses import at_least_fp32, contrastive_accuracy, nt_xent
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_batch, check_some_views
from raysl.nn import COLLAPSE, OutputNorm, batch_collapse, mlp, multi_crop
from raysl.transforms.recipes import MultiCrop


class SimCLR(Method):
    """Contrasts views with the whole global batch."""

    logged: ClassVar[tuple[str, ...]] = ("contrastive_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "simclr"
        temperature: Temperature = 0.1
        """Divides the cosines; smaller values weigh near negatives more (section 5.1, table 5)."""
        hidden_dim: Width = 2048
        """Width of the projector's hidden layer (section 4.2)."""
        output_dim: Width = 128
        """Width of the embeddings that the loss compares (section 4.2, figure 8)."""
        projector_norm: bool = True
        """Batch normalisation before the projector's ReLU (the authors' code, model_util.py)."""
        output_norm: OutputNorm = "scale"
        """Batch normalisation of the embeddings: none, plain, with a scale (the authors' code), or affine, with a scale
        and a shift."""
        views: MultiCrop = field(default_factory=lambda: MultiCrop(min_scale=0.08, num_local=0))
        """Two crops drawn the same way, with the colours and the blur of section 3 and appendix A."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        dims = [backbone.feature_dim, self.config.hidden_dim, self.config.output_dim]
        self.projector = mlp(dims, norm=self.config.projector_norm, output_norm=self.config.output_norm)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a single view, and a batch in which an image has no negative."""
        check_batch(setup, f"{cls.__name__} contrasts images")
        check_some_views(setup, f"{cls.__name__} pulls views of an image together")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss of this rank's images against the whole global batch (algorithm 1)."""
        h = multi_crop(self.backbone, batch.views)  # [B, V, D]
        z = at_least_fp32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2]))  # [B, V, P]
        z_all, rows = dist.all_gather(z), dist.own_rows(z)  # [N, V, P], [B]
        loss, terms = self._loss(z, z_all, rows, batch)
        metrics = {
            "contrastive_top1": 100 * contrastive_accuracy(z, z_all, rows),
            **terms,
            **batch_collapse(z),
        }
        return StepOutput(loss, metrics)

    def _loss(self, z: Tensor, z_all: Tensor, rows: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return NT-Xent (equation 1), and its terms for the log."""
        return nt_xent(z, z_all, rows, self.config.temperature), {}
