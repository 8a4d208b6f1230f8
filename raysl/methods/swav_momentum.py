"""SwAV with a momentum encoder: Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, whose
assignments are made by a slow copy of the network.

Caron, Misra, Mairal, Goyal, Bojanowski and Joulin 2020, arXiv 2006.09882, as in VISSL; there is no paper on it. A
teacher, which follows the network as an exponential moving average, embeds the large views and scores them by
prototypes of its own; the network predicts those assignments from the other views, as in SwAV.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Length, Momentum
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, Setup
from raysl.methods.swav import SwAV
from raysl.nn import Prototypes, Teacher, multi_crop
from raysl.schedule import Duration, Step


class SwAVMomentum(SwAV):
    """Predicts a teacher's balanced assignments from the other views."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SwAV.Config):
        """VISSL's settings; those of SwAV are the paper's."""

        name: str = "swav_momentum"
        momentum: Momentum = 0.99
        """Share of the teacher that an update keeps (VISSL)."""
        eval_from: Length = field(default=Duration.parse("0st"))
        """When the teacher switches from batch statistics to running statistics, those of the network (VISSL)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.teacher = Teacher(self.student(), buffers="copy")
        self.teacher_prototypes = Teacher(self._heads())

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Update as in SwAV, with the teacher's embeddings in the queue; then update the teacher, and normalise its
        prototypes."""
        super().after_update(step, batch, carry)
        self.teacher.update(self.student(), self.config.momentum)
        self.teacher_prototypes.update(self._heads(), self.config.momentum)
        for prototypes in self._assigning():
            prototypes.normalise()

    def _large(self, views: Tensor, z: Tensor, step: Step) -> Tensor:
        self.teacher.train(not self.config.eval_from.is_over(step))
        return F.normalize(at_least_fp32(multi_crop(self.teacher, {"global": views})), dim=-1)

    def _assigning(self) -> Sequence[Prototypes]:
        return cast(Sequence[Prototypes], self.teacher_prototypes.module)

    def _heads(self) -> nn.Module:
        return cast(nn.Module, self.prototypes)
