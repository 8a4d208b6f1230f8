"""DINO: Emerging Properties in Self-Supervised Vision Transformers.

Caron, Touvron, Misra, Jegou, Mairal, Bojanowski and Joulin 2021, arXiv 2104.14294. A student that sees any view of an
image predicts a teacher's scores of the image's other large views. The teacher follows the student slowly; its scores
are centred, so that no prototype wins, and sharpened, so that they do not become uniform.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raysl.config.ranges import Length, Momentum, Share, Temperature
from raysl.losses import dino
from raysl.methods.method import Backbone, Batch, Method, MethodConfig, Setup, StepOutput
from raysl.nn import COLLAPSE, Centre, DINOHead, HeadConfig, Teacher, batch_collapse, multi_crop
from raysl.schedule import Duration, Step, cosine, linear_over
from raysl.transforms.recipes import AsymmetricMultiCrop


class DINO(Method):
    """Predicts a teacher's assignments of large views from all other views."""

    # it is better than the student throughout training (section 5.2, figure 6)
    exports_teacher = True
    logged = ("teacher_entropy", "kl", *COLLAPSE)
    why_several_views = "DINO predicts the teacher's scores of one view from another"
    compiles = "step"

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "dino"
        temperature: Temperature = 0.1
        """Divides the student's scores (section 3.2, "Implementation details")."""
        teacher_temp: Temperature = 0.07
        """Divides the teacher's centred scores, after its warm-up (section 3.2)."""
        teacher_temp_start: Temperature = 0.04
        """That value at the first step (section 3.2)."""
        teacher_temp_warmup: Length = field(default=Duration.parse("30ep"))
        """Duration of its linear rise (section 3.2)."""
        momentum: Share = 0.996
        """Share of the teacher that the first update keeps (section 3.1, "Teacher network")."""
        momentum_end: Share = 1.0
        """That share at the end of the run, reached along half a cosine (section 3.1)."""
        centre_momentum: Momentum = 0.9
        """Share of the centre that an update keeps (eq. 4, and the authors' code)."""
        freeze_last_layer: Length = field(default=Duration.parse("1ep"))
        """How long the prototypes stay frozen at their initial values (the authors' code)."""
        head: HeadConfig = field(default_factory=HeadConfig)
        """The projector (section 3.1, "Network architecture"; appendix C)."""
        views: AsymmetricMultiCrop = field(default_factory=AsymmetricMultiCrop)
        """Two large crops, which the teacher sees, and eight small ones (section 3.1, and the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.head = DINOHead(backbone.feature_dim, self.config.head)
        self.teacher, self.teacher_head = Teacher(backbone), Teacher(self.head)
        self.centre = Centre(self.config.head.num_prototypes)

    @property
    def most_entropy(self) -> float:
        """See `Method.most_entropy`."""
        return math.log(self.config.head.num_prototypes)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 3 on this rank's images: each view against all other large views; algorithm 1."""
        h = multi_crop(self.backbone, batch.views)  # [B, V, D]
        scores = self.head(h)  # [B, V, K]
        teacher_scores = self.teacher_head(multi_crop(self.teacher, {"global": batch.views["global"]}))  # [B, G, K]
        codes = self.centre(teacher_scores, self._teacher_temp(step))
        loss = dino(scores, codes, self.config.temperature)
        # the loss is entropy + KL; a KL of 0 means a constant output, and so a collapse (section 5.3)
        entropy = torch.special.entr(codes).sum(dim=-1).mean()
        metrics = {
            "teacher_entropy": entropy,
            "kl": loss.detach() - entropy,
            **batch_collapse(h[:, 0]),
        }
        return StepOutput(loss, metrics, {"scores": teacher_scores.mean(dim=1)})

    def after_backward(self, step: Step) -> None:
        """Freeze the prototypes for a while."""
        if not self.config.freeze_last_layer.is_over(step):
            self.head.hold_last()

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Move the centre (eq. 4), and let the teacher follow (section 3.1)."""
        self.centre.update(carry["scores"], self.config.centre_momentum)
        momentum = cosine(step.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.update(self.backbone, momentum)
        self.teacher_head.update(self.head, momentum)

    def _teacher_temp(self, step: Step) -> float:
        config = self.config
        return linear_over(step, config.teacher_temp_warmup, config.teacher_temp_start, config.teacher_temp)
