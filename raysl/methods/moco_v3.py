"""MoCo v3: An Empirical Study of Training Self-Supervised Vision Transformers.

Chen, Xie and He 2021, arXiv 2104.02057. Each view's query must find the other view's key among the keys of the whole
batch; there is no queue. Keys come from a teacher, queries pass a predictor. A ViT trains stably if its map from
patches to tokens stays frozen at its random start.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor

from raysl import distributed as dist
from raysl.config.ranges import Share, Temperature, Width, Within
from raysl.losses import at_least_fp32, batch_info_nce
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, StepOutput, TokenBackbone
from raysl.methods.shared.setup_checks import check_batch, check_two_views
from raysl.nn import COLLAPSE, Teacher, batch_collapse, mlp
from raysl.schedule import Step, cosine
from raysl.transforms.recipes import AsymmetricCrops


class MoCoV3(Method):
    """Contrasts predicted queries with a teacher's keys of the whole batch, in both directions."""

    logged = ("contrastive_top1", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings for ViTs on ImageNet; for ResNet-50: `configs/imagenet/moco_v3_resnet50.yaml`."""

        name: str = "moco_v3"
        temperature: Temperature = 0.2
        """Divides the cosines (section 5, "Loss"; the authors' code has 1 for ResNet-50)."""
        projector_layers: Annotated[int, Within(1, 16)] = 3
        """Linear layers of the projector (section 5, "MLP heads"; 2 for ResNet-50 in the authors' code)."""
        hidden_dim: Width = 4096
        """Width of the hidden layers of projector and predictor (section 5, "MLP heads")."""
        output_dim: Width = 256
        """Width of queries and keys (section 5, "MLP heads")."""
        predictor_norm: bool = True
        """Normalise the predictor's output over the batch, like that of all other layers (section 5, "MLP heads"); the
        authors' code does not for ResNet-50."""
        predictor_bias: bool = True
        """Have a bias in the predictor's last layer if it is not normalised; the authors' code has none."""
        momentum: Share = 0.99
        """Share of the teacher that the first update keeps (section 6.1, "Momentum encoder")."""
        momentum_end: Share = 1.0
        """That share at the end, reached along half a cosine (the authors' code)."""
        freeze_patches: bool | None = None
        """Freeze the map from patches to tokens at its start (section 4.2, "A trick"). Default: if the backbone has
        patches."""
        views: AsymmetricCrops = field(default_factory=AsymmetricCrops)
        """Two crops as in BYOL, one always blurred and the other sometimes solarised (section 5)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        if isinstance(backbone, TokenBackbone) and config.freeze_patches is not False:
            backbone.patch_embed.requires_grad_(False)
        hidden = [config.hidden_dim] * (config.projector_layers - 1)
        self.projector = mlp([backbone.feature_dim, *hidden, config.output_dim], norm=True, output_norm="plain")
        dims = [config.output_dim, config.hidden_dim, config.output_dim]
        output_norm: Literal["plain", "none"] = "plain" if config.predictor_norm else "none"
        self.predictor = mlp(dims, norm=True, output_norm=output_norm, last_bias=config.predictor_bias)
        self.teacher = Teacher(self.student())

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse numbers of views other than two, a batch without negatives, and frozen patches of a network without
        patches."""
        check_two_views(setup, "MoCo v3 takes a query and a key")
        check_batch(setup, "MoCo v3 contrasts images")
        if setup.method.freeze_patches and setup.backbone.patch_size is None:
            raise ConfigError(
                f"method.freeze_patches is true, and backbone {setup.config.backbone.name!r} has no patches; leave it "
                "out, or set backbone=vit"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Sum the losses of both views' queries (section 3, algorithm 1)."""
        first, second = batch.views["global"].unbind(1)  # [B, C, H, W] each
        q_first, q_second = self._queries(first), self._queries(second)  # [B, D]
        k_first, k_second = self.teacher(first), self.teacher(second)  # [B, D], without gradients
        loss_first, hits_first = self._contrast(q_first, k_second)
        loss_second, hits_second = self._contrast(q_second, k_first)
        metrics = {
            "contrastive_top1": 50 * (hits_first + hits_second),
            **batch_collapse(q_first),
        }
        return StepOutput(loss_first + loss_second, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow, more and more slowly (algorithm 1)."""
        momentum = cosine(step.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.update(self.student(), momentum)

    def _queries(self, images: Tensor) -> Tensor:
        """Return the predictions of one view [B, D], normalised separately."""
        q: Tensor = self.predictor(self.projector(self.backbone(images)))
        return q

    def _contrast(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return eq. 1 times 2T with the keys of all ranks, and the share of queries nearest to their own key."""
        temperature = self.config.temperature
        loss, hits = batch_info_nce(q, dist.all_gather(at_least_fp32(k)), dist.own_rows(k), temperature)
        return 2 * temperature * loss, hits
