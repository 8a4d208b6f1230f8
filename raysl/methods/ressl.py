"""ReSSL: Relational Self-Supervised Learning with Weak Augmentation.

Zheng, You, Wang, Qian, Zhang, Wang and Xu 2021, arXiv 2107.09282. The similarities of a strongly distorted view to a
queue of other images must agree with those that a teacher computes from a weakly distorted view of the same image.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Momentum, QueueSize, Share, Temperature, Width
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_queue
from raysl.nn import COLLAPSE, Queue, Teacher, batch_collapse, mlp
from raysl.nn.batch_norm import in_shuffled_order
from raysl.transforms import Mask, ViewRecipe
from raysl.transforms.recipes import Crops, NumViews


@dataclass(frozen=True, kw_only=True)
class WeakAndStrongCrops(Crops):
    """A crop with at most a mirroring in the group "weak", and crops with all distortions in "global"."""

    num: NumViews = 1
    """Number of strongly distorted views of each image."""
    weak_affine_p: Share = 0.0
    """Probability of the affine map of the weak view; the paper has none."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "weak" and "global"."""
        plain = replace(self, affine_p=self.weak_affine_p, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
        weak = plain._view(self.size, (self.min_scale, 1.0))
        return ViewRecipe({"weak": (weak,)} | super().recipe(mask).groups)


class ReSSL(Method):
    """Matches a teacher's similarities to a queue of other images."""

    logged = ("neighbor_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings."""

        name: str = "ressl"
        temperature: Temperature = 0.1
        """Divides the student's cosines, tau s (section 4)."""
        teacher_temperature: Temperature = 0.04
        """Divides the teacher's cosines, tau t: below the student's, so that its relations are sharper (section 3)."""
        hidden_dim: Width = 4096
        """Width of the projector's hidden layer (section 4)."""
        output_dim: Width = 512
        """Width of the embeddings (section 4)."""
        projector_norm: bool = False
        """Batch normalisation before the ReLU of the projector; the authors' code has none."""
        queue_size: QueueSize = 131072
        """Number of the teacher's embeddings to compare views with (section 4)."""
        momentum: Momentum = 0.999
        """Share of the teacher that an update keeps (section 4)."""
        teacher_bn: Literal["shuffle", "plain"] = "shuffle"
        """Batch normalisation of the teacher: over the rows of one worker in a shuffled order (the authors' code; with
        train.sync_bn=false), or like the student's."""
        views: WeakAndStrongCrops = field(
            default_factory=lambda: WeakAndStrongCrops(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1))
        )
        """A crop for the teacher, and one with colours and blur for the student (section 3, "Weak augmentation")."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        self.projector = mlp([backbone.feature_dim, config.hidden_dim, config.output_dim], norm=config.projector_norm)
        self.teacher = Teacher(self.student())
        self.queue = Queue(config.queue_size, config.output_dim)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a teacher less sharp than its student, a normalisation of it that contradicts `train.sync_bn`, and a
        queue smaller than a batch."""
        method = setup.method
        if method.teacher_temperature >= method.temperature:
            raise ConfigError(
                f"method.teacher_temperature is {method.teacher_temperature} and method.temperature "
                f"{method.temperature}; the teacher's relations must be sharper: set it below, 0.04 in the paper"
            )
        train = setup.config.train
        # With one worker both statistics are the same.
        if method.teacher_bn == "shuffle" and train.sync_bn and train.most_workers > 1:
            raise ConfigError(
                "method.teacher_bn=shuffle is for statistics of each worker's rows, and train.sync_bn=true takes those "
                "of all; set train.sync_bn=false, or method.teacher_bn=plain"
            )
        check_queue(setup, "embeddings would leave before they were compared")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the cross entropy between the teacher's relations and the student's (algorithm 1)."""
        strong, weak = batch.views["global"], batch.views["weak"][:, 0]  # [B, V, C, H, W], [B, C, H, W]
        h = self.backbone(strong.flatten(0, 1))  # [B*V, H]
        z = F.normalize(at_least_fp32(self.projector(h).unflatten(0, strong.shape[:2])), dim=-1)  # [B, V, D]
        z_teacher = F.normalize(at_least_fp32(self._teach(weak, batch)), dim=-1)  # [B, D], without gradients
        with torch.autocast(z.device.type, enabled=False):
            keys = self.queue.keys.to(z.dtype)  # [Q, D]
            student, teacher = z @ keys.T, (z_teacher @ keys.T)[:, None]  # [B, V, Q], [B, 1, Q]
            relations = F.softmax(teacher / self.config.teacher_temperature, dim=-1)
            log_student = F.log_softmax(student / self.config.temperature, dim=-1)
            loss = -(relations * log_student).sum(dim=-1).mean()
        hits = student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)  # [B, V]
        metrics = {"neighbor_top1": 100 * hits.float().mean(), **batch_collapse(z[:, 0])}
        return StepOutput(loss, metrics, {"z": z_teacher})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow, and queue its embeddings of all ranks."""
        self.teacher.update(self.student(), self.config.momentum)
        self.queue.push(dist.all_gather(carry["z"]))

    def _teach(self, images: Tensor, batch: Batch) -> Tensor:
        """Return the teacher's projections of this rank's images [B, D]."""
        if self.config.teacher_bn == "shuffle":
            return in_shuffled_order(self.teacher, images, batch, "ressl.shuffle")
        z: Tensor = self.teacher(images)
        return z
