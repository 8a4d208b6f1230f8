"""DenseCL: Dense Contrastive Learning for Self-Supervised Visual Pre-Training.

Wang, Zhang, Shen, Kong and Li 2021, arXiv 2011.09157. MoCo's contrast of images, and beside it the same contrast of
places: each place of one view's feature map must find the most similar place of the other view among a second queue.
The network serves detection and segmentation.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Share, Width
from raysl.losses import at_least_fp32, info_nce
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.methods.moco import MoCo
from raysl.methods.shared.setup_checks import check_map_stage
from raysl.nn import COLLAPSE, Queue, Teacher, batch_collapse, features_and_map, last_map
from raysl.nn.batch_norm import in_shuffled_order


class DenseCL(MoCo):
    """Contrasts images and places with two queues of keys."""

    logged: ClassVar[tuple[str, ...]] = ("contrastive_top1", "dense_cosine", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MoCo.Config):
        """The paper's ImageNet settings."""

        name: str = "densecl"
        dense_share: Share = 0.5
        """Weight lambda of the contrast of places; that of images has the rest (eq. 3, section 3.4)."""
        dense_hidden_dim: Width = 2048
        """Width of the hidden layer of the dense projector, two convolutions of one pixel (section 4.1)."""
        stage: str | None = None
        """Stage of the backbone whose map is contrasted. Default: the one in front of the features."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        info = backbone.info(backbone.config)
        self.stage: str = config.stage or last_map(info)
        self.dense_projector = nn.Sequential(
            nn.Conv2d(info.stages[self.stage], config.dense_hidden_dim, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(config.dense_hidden_dim, config.output_dim, 1),
        )
        self.dense_teacher = Teacher(self.dense_projector)
        self.dense_queue = Queue(config.queue_size, config.output_dim)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what MoCo refuses, and a stage that the backbone has not."""
        super().check(setup)
        check_map_stage(setup)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 3 of this rank's queries, with the queues of all ranks' keys."""
        views = batch.views["global"]  # [B, 2, C, H, W]
        networks = self.backbone, self.projector, self.dense_projector
        q, q_places, q_map = self._outputs(*networks, views[:, 0])  # [B, D], [B, S, D], [B, S, C]
        k, k_places, k_map = self._all_keys(views[:, 1], batch)
        matched = _matched(q_map, k_map, k_places)  # [B, S, D]
        temperature, share = self.config.temperature, self.config.dense_share
        of_images = info_nce(q, k, self.queue.keys, temperature)
        of_places = info_nce(q_places.flatten(0, 1), matched.flatten(0, 1), self.dense_queue.keys, temperature)
        metrics = {
            "contrastive_top1": 100 * self._accuracy(q, k),
            "dense_cosine": F.cosine_similarity(q_places.detach(), matched, dim=-1).mean(),
            **batch_collapse(q),
        }
        carry = {"keys": k, "dense_keys": F.normalize(k_places.mean(dim=1), dim=-1)}
        return StepOutput((1 - share) * of_images + share * of_places, metrics, carry)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Queue the keys of all ranks' images, and the means of their places; let the teachers follow."""
        super().after_update(step, batch, carry)
        self.dense_queue.push(dist.all_gather(carry["dense_keys"]))
        self.dense_teacher.update(self.dense_projector, self.config.momentum)

    @override
    def _new_projector(self, dim: int) -> nn.Sequential:
        projector = super()._new_projector(dim)
        for layer in projector:
            # The convolutions of the dense projector stay as torch draws them (the authors' code, necks.py).
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        return projector

    @torch.no_grad()
    def _all_keys(self, images: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys of this rank's images [B, D], of their places [B, S, D], and their features there [B, S, C]."""
        if self.config.key_bn == "eval":
            self.teacher.eval()
        backbone, projector = self.teacher.module.children()
        keys = partial(self._outputs, backbone, projector, self.dense_teacher.module)
        if self.config.key_bn != "shuffle":
            k, z_places, features = keys(images)
            return F.normalize(k, dim=-1), z_places, features
        # shuffling moves one row for each image, so the three outputs travel side by side in that row
        widths: list[int] = []

        def one_row_each(images: Tensor) -> Tensor:
            k, *of_places = keys(images)
            widths[:] = [values.shape[2] for values in of_places]
            return torch.cat([k, torch.cat(of_places, dim=2).flatten(1)], dim=1)  # [B, D + S * (D + C)]

        rows = in_shuffled_order(one_row_each, images, batch, "moco.shuffle")
        k, together = torch.tensor_split(rows, [self.config.output_dim], dim=1)
        z_places, features = torch.split(together.view(len(rows), -1, sum(widths)), widths, dim=2)
        return F.normalize(k, dim=-1), z_places, features

    def _outputs(
        self, backbone: nn.Module, projector: nn.Module, dense_projector: nn.Module, images: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings of images [B, D] and of their places [B, S, D], and the features there [B, S, C]."""
        h, values = features_and_map(backbone, images, self.stage)  # [B, F], [B, C, h, w]
        z_places = at_least_fp32(dense_projector(values)).flatten(2).transpose(1, 2)
        return at_least_fp32(projector(h)), z_places, at_least_fp32(values.detach()).flatten(2).transpose(1, 2)


def _matched(q_map: Tensor, k_map: Tensor, k_places: Tensor) -> Tensor:
    """Return for each place of the query [B, S, C] the key [B, S, D] of the place whose features are most similar (eq.
    4)."""
    with torch.autocast(q_map.device.type, enabled=False):
        q_map, k_map = F.normalize(q_map, dim=-1), F.normalize(k_map, dim=-1)
        nearest = (q_map @ k_map.transpose(1, 2)).argmax(dim=2)  # [B, S]
        return k_places.gather(1, nearest[:, :, None].expand(-1, -1, k_places.shape[2]))
