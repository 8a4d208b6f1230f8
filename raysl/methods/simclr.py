"""SimCLR: A Simple Framework for Contrastive Learning of Visual Representations.

Chen, Kornblith, Norouzi and Hinton 2020, arXiv 2002.05709. Two random views of an image attract each other and repel
those of every other image in the batch: backbone, a two-layer projector, and a cross entropy over cosines.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from torch import Tensor
from torch.nn import functional as F

from raysl import dist
from raysl.config.ranges import Area, Factors, Share, Temperature, ViewSide, Width, Within
from raysl.config.schema import MethodConfig
from raysl.data.batch import Batch, DataInfo
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32, contrastive_accuracy, nt_xent
from raysl.methods.method import Method, StepOutput
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.heads import mlp
from raysl.schedule import Step
from raysl.transforms import (
    Affine,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandomResizedCrop,
    Transform,
    View,
    ViewRecipe,
)

if TYPE_CHECKING:
    from raysl.train.plan import TrainPlan


@dataclass(frozen=True, kw_only=True)
class Views:
    """The augmentation of section 3 and appendix A; all views of an image are drawn alike."""

    size: ViewSide = 224
    """Side of a view in pixels; follows data.image_size, and that follows it, unless both are given."""
    num: Annotated[int, Within(2, 64)] = 2
    """Views of each image; with more than two, each is pulled to all the others."""
    min_scale: Area = 0.08
    """Smallest area of the random crop as a share of the image (appendix A, random crop and resize)."""
    flip: Share = 0.5
    """Probability of a horizontal flip."""
    affine_p: Share = 0.0
    """Probability of a random affine map. Not in the paper; of use where a crop alone says little, as on digits."""
    degrees: Annotated[float, Within(0, 180)] = 0.0
    """Largest rotation of the affine map, either way, in degrees."""
    translate: Share = 0.0
    """Largest shift of the affine map along each axis, as a share of the side."""
    scale: Factors = (1.0, 1.0)
    """Range of the zoom of the affine map."""
    shear: Annotated[float, Within(0, 89)] = 0.0
    """Largest shear of the affine map, either way, in degrees."""
    jitter_strength: Annotated[float, Within(0, 2.5)] = 1.0
    """Strength s of the colour jitter: brightness, contrast and saturation .8 s, hue .2 s (appendix A)."""
    jitter_p: Share = 0.8
    """Probability of the colour jitter."""
    grayscale_p: Share = 0.2
    """Probability of dropping the colour."""
    blur_p: Share = 0.5
    """Probability of a Gaussian blur (appendix A, Gaussian blur)."""
    blur_sigma: Factors = (0.1, 2.0)
    """Range of the blur's standard deviation in pixels."""


class SimCLR(Method):
    """Contrast of views against the whole global batch."""

    logged = ("contrastive_top1", "embedding_std")

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "simclr"
        temperature: Temperature = 0.1
        """Divides the cosines; smaller is harder on near negatives (section 5.1, table 5)."""
        hidden_dim: Width = 2048
        """Width of the projector's hidden layer (section 4.2)."""
        output_dim: Width = 128
        """Width of the embeddings that the loss compares (section 4.2, figure 8)."""
        projector_norm: bool = False
        """Batch normalisation in the projector; the paper has none."""
        views: Views = field(default_factory=Views)
        """How views are made."""

    def __init__(self, config: Config, backbone: Backbone, data: DataInfo) -> None:
        super().__init__(config, backbone, data)
        dims = [backbone.feature_dim, config.hidden_dim, config.output_dim]
        self.projector = mlp(dims, norm=config.projector_norm)

    @classmethod
    def views(cls, config: Config) -> ViewRecipe:
        """`views.num` views of one recipe, group "global"."""
        return ViewRecipe(groups={"global": (_view(config.views),) * config.views.num})

    @classmethod
    def check(cls, config: Config, data: DataInfo, plan: "TrainPlan") -> None:
        """Refuse views that cannot be made, and a batch in which an image has no negative.

        Raises:
            ConfigError: with the value and what to set instead.
        """
        if plan.batch_size < 2:
            raise ConfigError(f"train.batch_size is {plan.batch_size}; SimCLR contrasts images: at least 2, better 256")
        try:
            cls.views(config)
        except ValueError as error:
            raise ConfigError(f"method.views: {error}") from error

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """NT-Xent of this rank's images against the whole global batch, algorithm 1."""
        views = batch.views["global"]  # [B, V, C, H, W]
        h = self.backbone(views.flatten(0, 1)).unflatten(0, views.shape[:2])  # [B, V, D]
        z = at_least_fp32(self.projector(h.flatten(0, 1)).unflatten(0, views.shape[:2]))  # [B, V, P]
        z_all, rows = dist.all_gather(z), dist.own_rows(z)  # [N, V, P], [B]
        loss = nt_xent(z, z_all, rows, self.config.temperature)
        metrics = {
            "contrastive_top1": 100 * contrastive_accuracy(z, z_all, rows),
            "embedding_std": _spread(z_all),
        }
        return StepOutput(loss, metrics, features=h[:, 0].detach())


def _view(views: Views) -> View:
    """The chain of one view; what can never act is left out."""
    s = views.jitter_strength
    is_map = any((views.degrees, views.translate, views.shear, views.scale != (1.0, 1.0)))
    chain: list[tuple[float, Transform]] = [
        (views.flip, HorizontalFlip(p=views.flip)),
        (
            views.affine_p * is_map,
            Affine(
                p=views.affine_p,
                degrees=views.degrees,
                translate=(views.translate, views.translate),
                scale=views.scale,
                shear=views.shear,
            ),
        ),
        (
            views.jitter_p * s,
            ColorJitter(p=views.jitter_p, brightness=0.8 * s, contrast=0.8 * s, saturation=0.8 * s, hue=0.2 * s),
        ),
        (views.grayscale_p, Grayscale(p=views.grayscale_p)),
        (views.blur_p, GaussianBlur(p=views.blur_p, sigma=views.blur_sigma, kernel_size=None)),
    ]
    crop = RandomResizedCrop(size=views.size, scale=(views.min_scale, 1.0))
    return View(crop=crop, transforms=tuple(transform for acts, transform in chain if acts > 0))


def _spread(z: Tensor) -> Tensor:
    """Standard deviation of unit embeddings [N, V, D] by dimension, times sqrt(D): 1 spread evenly, 0 collapsed."""
    z = F.normalize(z.detach().flatten(0, 1).float(), dim=-1)
    return z.std(dim=0, correction=0).mean() * math.sqrt(z.shape[-1])
