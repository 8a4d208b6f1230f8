"""SwAV with a momentum encoder: Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, whose
assignments are made by a slow copy of the network.

Caron, Misra, Mairal, Goyal, Bojanowski and Joulin 2020, arXiv 2006.09882, in the form that VISSL gives it; there is no
paper on it. A teacher, which follows the network as an exponential moving average, embeds the large views and scores
them by prototypes of its own; the network predicts those assignments from the other views, as in SwAV.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Length, Momentum
from raysl.data.batch import Batch
from raysl.losses import at_least_fp32
from raysl.methods.method import StepOutput
from raysl.methods.setup import Setup
from raysl.methods.swav import SwAV, scores_of
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.ema import Teacher
from raysl.nn.multi_crop import multi_crop
from raysl.nn.prototypes import Prototypes
from raysl.schedule import Duration, Step


class SwAVMomentum(SwAV):
    """Swapped prediction of balanced assignments that a teacher makes."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SwAV.Config):
        """VISSL's settings; those of SwAV are the paper's."""

        name: str = "swav_momentum"
        momentum: Momentum = 0.99
        """Share of the teacher that an update keeps (VISSL)."""
        eval_from: Length = field(default=Duration.parse("0st"))
        """When the teacher begins to normalise by running statistics, which are the network's, and no longer by those
        of the batch (VISSL)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.teacher = Teacher(self._student(), buffers="copy")
        self.teacher_prototypes = Teacher(self._heads())

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """SwAV's eq. 2 and 6, with codes of the teacher's scores of its own embeddings of the large views."""
        z = self._embed(batch.views)  # [B, V, P]
        self.teacher.train(not self.config.eval_from.is_over(step))
        with torch.no_grad():
            k = F.normalize(at_least_fp32(multi_crop(self.teacher, {"global": batch.views["global"]})), dim=-1)
            to_code = scores_of(self._assigning(), k)
        return self._swapped(z, scores_of(self.prototypes, z), k, to_code, step)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """What SwAV does, the queue holding the teacher's embeddings; then the teacher follows, and its prototypes are
        brought back to length 1, too."""
        super().after_update(step, batch, carry)
        self.teacher.update(self._student(), self.config.momentum)
        self.teacher_prototypes.update(self._heads(), self.config.momentum)
        for prototypes in self._assigning():
            prototypes.normalise()

    def _assigning(self) -> Sequence[Prototypes]:
        return cast(Sequence[Prototypes], self.teacher_prototypes.module)

    def _student(self) -> nn.Sequential:
        return nn.Sequential(self.backbone, self.projector)

    def _heads(self) -> nn.Module:
        return cast(nn.Module, self.prototypes)
