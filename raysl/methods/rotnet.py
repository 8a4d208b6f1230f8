"""RotNet: Unsupervised Representation Learning by Predicting Image Rotations.

Gidaris, Singh and Komodakis 2018, arXiv 1803.07728. Images are turned by 0, 90, 180 or 270 degrees, and a linear
classifier on the backbone predicts by how much.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Share
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import RandomRotation90, Transform
from raysl.transforms.recipes import Crops, NumViews

NUM_TURNS = 4


@dataclass(frozen=True, kw_only=True)
class TurnedCrops(Crops):
    """Crops, each finally turned by a multiple of 90 degrees, which leaves no black corners.

    As in the paper's code, images are mirrored before they are turned. VISSL mirrors afterwards, which makes turns by
    90 and 270 degrees of symmetric images look alike.
    """

    num: NumViews = 1
    """Views of each image, turned independently; the paper's code has all four turns in a batch (section 3.1)."""
    jitter_p: Share = 0.0
    """Probability of the colour jitter; the paper has none."""
    grayscale_p: Share = 0.0
    """Probability of dropping the colour; the paper has none."""
    blur_p: Share = 0.0
    """Probability of a Gaussian blur; the paper has none."""

    def _chain(self) -> tuple[Transform, ...]:
        return (*super()._chain(), RandomRotation90())


class RotNet(Method):
    """Recognises quarter turns."""

    logged = ("rotation_top1", *COLLAPSE)
    evaluated = ("rotation_top1",)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's method has no settings but the four turns (section 2.2)."""

        name: str = "rotnet"
        views: TurnedCrops = field(default_factory=TurnedCrops)
        """A crop, mirrored with probability 1/2 and turned (section 3.2)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.classifier = nn.Linear(backbone.feature_dim, NUM_TURNS)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse an affine map whose rotation confuses the four turns, and vertical flips."""
        views = setup.method.views
        if views.affine_p > 0 and views.degrees >= 45:
            raise ConfigError(
                f"method.views.degrees is {views.degrees:g}; RotNet distinguishes turns by 90 degrees, which rotations "
                "by 45 either way confuse: set it below 45"
            )
        if views.vertical_flip > 0:
            raise ConfigError(
                f"method.views.vertical_flip is {views.vertical_flip:g}; RotNet predicts how an image was turned, "
                "and a flipped one looks like a turned one: set it to 0, or take another method"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the cross entropy of the turns of this rank's images (equation 2)."""
        h, logits, turns = self._classify(batch)
        loss = F.cross_entropy(logits, turns)
        hits = 100 * (logits.argmax(dim=1) == turns).float().mean()
        per_image = h.view(len(batch), -1, h.shape[1])  # [B, V, D]
        return StepOutput(loss, {"rotation_top1": hits, **batch_collapse(per_image)})

    @torch.no_grad()
    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Return the share of an image's views whose turn is recognised, in percent [B]."""
        _, logits, turns = self._classify(batch)
        hits = (logits.argmax(dim=1) == turns).float()
        return {"rotation_top1": 100 * hits.view(len(batch), -1).mean(dim=1)}

    def _classify(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [B*V, D], logits [B*V, 4] and the true quarters [B*V]."""
        h = self.backbone(batch.views["global"].flatten(0, 1))
        return h, at_least_fp32(self.classifier(h)), batch.extras["global.rotation"].flatten()
