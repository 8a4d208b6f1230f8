"""VISReg: Variance-Invariance-Sketching Regularization for JEPA training.

Wu, Balestriero and Levine 2026, arXiv 2606.02572. Embeddings of all views of an image agree with the mean of its large
views, as in LeJEPA. Three terms keep them from collapsing: in each view every dimension has mean 0 and standard
deviation 1 over the batch, and on random directions the standardised embeddings have the quantiles of a standard normal
distribution. There is no teacher and no predictor.

Where the paper and the authors' code differ this is the code: its statistics are those of the images of all GPUs, and
it adds 1e-6 to standard deviations.
"""

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Amount, Area, Areas, LocalSide, Share, Width, Within
from raysl.losses import VISRegTerms, at_least_fp32, visreg
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn import COLLAPSE, batch_collapse, mlp, multi_crop
from raysl.transforms.recipes import MultiCrop, NumViews


@dataclass(frozen=True, kw_only=True)
class VISRegViews(MultiCrop):
    """Large and small crops with the same colours, blur and solarisation (the authors' code).

    >>> {name: len(views) for name, views in VISRegViews().recipe().groups.items()}
    {'global': 4, 'local': 6}
    """

    num: NumViews = 4
    """Large views of each image."""
    min_scale: Area = 0.3
    """Smallest area of a large view as a share of the image."""
    local_size: LocalSide = 96
    """Side of a small view in pixels; follows `size` in proportion unless it is given."""
    local_scale: Areas = (0.05, 0.3)
    """Areas of small views as shares of the image."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.2, 0.1)
    """Colour jitter of brightness, contrast, saturation and hue at strength 1. The authors' configurations have a hue
    of 0.05, which their code reads for its augmentation on the GPU alone; their weights were trained without it."""
    solarize_p: Share = 0.2
    """Probability of inverting the values above a half."""


class VISReg(Method):
    """Agreement of all views, and embeddings that are standardised and normal in every direction."""

    compiles = "no"
    logged = ("invariance", *VISRegTerms._fields, *COLLAPSE)
    why_several_views = "VISReg compares views of an image"
    why_several_images = "one image has no distribution"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings for a ViT-B."""

        name: str = "visreg"
        regularization: Share = 0.9
        """Weight lambda of the three terms that prevent collapse; the agreement of views has 1 - lambda (the authors'
        code: 0.8 for a ViT-L, 0.6 for ten classes of ImageNet)."""
        centre: Amount = 1.0
        """Weight of the squared means of dimensions."""
        scale: Amount = 1.0
        """Weight of the squared differences of standard deviations from 1."""
        shape: Amount = 1.0
        """Weight of the squared distances from normal quantiles."""
        num_slices: Annotated[int, Within(1, 65_536)] = 4096
        """Random directions of a step, the same on all workers (the authors' code, in which each GPU draws its own)."""
        eps: Annotated[float, Within(1e-12, 1)] = 1e-6
        """Added to standard deviations (the authors' code)."""
        hidden_dim: Width = 2048
        """Width of the projector's two hidden layers (the authors' code)."""
        output_dim: Width = 256
        """Width of the embeddings (the authors' code: a third of the backbone's)."""
        views: VISRegViews = field(default_factory=VISRegViews)
        """Four large crops and six small ones."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        hidden_dim, output_dim = self.config.hidden_dim, self.config.output_dim
        dims = [backbone.feature_dim, hidden_dim, hidden_dim, output_dim]
        self.projector = mlp(dims, norm=True, activation=nn.GELU)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the weighted sum of four terms: agreement on this rank's images, the others over the global batch."""
        config = self.config
        # one pass per size through the projector too, as in the authors' code: its statistics are those of one size
        z = at_least_fp32(multi_crop(nn.Sequential(self.backbone, self.projector), batch.views))  # [B, V, D]
        centres = z[:, : batch.views["global"].shape[1]].mean(dim=1, keepdim=True)  # [B, 1, D]
        invariance = F.mse_loss(z, centres.expand_as(z))
        terms = visreg(dist.all_gather(z, same_loss=True), self._slices(z, batch), config.eps)
        regularization = config.centre * terms.centre + config.scale * terms.scale + config.shape * terms.shape
        loss = (1 - config.regularization) * invariance + config.regularization * regularization
        metrics = {"invariance": invariance} | terms._asdict()
        return StepOutput(loss, {name: term.detach() for name, term in metrics.items()} | batch_collapse(z[:, 0]))

    def _slices(self, z: Tensor, batch: Batch) -> Tensor:
        """Return directions [D, S], drawn anew in each step, the same on all ranks."""
        width, num_slices = z.shape[-1], self.config.num_slices
        normal = batch.shared("slices").normals_on(z.device, width * num_slices).view(width, num_slices)
        return F.normalize(normal, dim=0).to(z.dtype)
