"""DetCon: Efficient Visual Pretraining with Contrastive Detection.

Hénaff, Koppula, Alayrac, van den Oord, Vinyals and Carreira 2021, arXiv 2103.10957. Masks divide an image into parts;
the features under the same mask in two views attract each other, and those under all other masks, of the same image
too, are pushed away. DetCon_S is SimCLR's network, DetCon_B BYOL's. The masks here are the paper's spatial heuristic, a
grid over the whole image: those of Felzenszwalb and Huttenlocher, the paper's default, are not part of raysl.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.ranges import Temperature, Within
from raysl.losses import at_least_fp32, detcon
from raysl.methods.byol import BYOL
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_map_stage
from raysl.nn import COLLAPSE, batch_collapse, features_and_map, last_map
from raysl.nn.places import draw_present, grid_cells
from raysl.transforms.device import to_device
from raysl.transforms.view_recipe import ViewRecipe


class DetCon(BYOL):
    """Contrasts the parts of images that masks cut out."""

    logged: ClassVar[tuple[str, ...]] = ("agreement", "masks_matched", *COLLAPSE)
    # A step draws masks on the host.
    compiles = "no"

    @dataclass(frozen=True, kw_only=True)
    class Config(BYOL.Config):
        """The authors' ImageNet settings of DetCon_B."""

        name: str = "detcon"
        variant: Literal["b", "s"] = "b"
        """"b" predicts the projections of a slow copy, as BYOL; "s" compares projections of one network, as SimCLR,
        and uses neither predictor nor momentum (section 3.1)."""
        grid: Annotated[int, Within(1, 64)] = 5
        """Cells along each side of the image, whose places are one mask each (the spatial heuristic of section 4.3)."""
        num_masks: Annotated[int, Within(1, 1024)] = 16
        """Masks drawn of each view, with replacement, among those that it shows (the authors' code)."""
        temperature: Temperature = 0.1
        """Temperature of the contrast (the authors' code)."""
        stage: str | None = None
        """Stage of the backbone whose map is pooled. Default: the one in front of the features."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.stage: str = self.config.stage or last_map(backbone.info(backbone.config))
        if self.config.variant == "s":
            del self.predictor, self.teacher

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what BYOL refuses, and a stage that the backbone has not."""
        super().check(setup)
        check_map_stage(setup)

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the views with their boxes, which say what part of the image each place shows."""
        return super().views(setup).with_boxes()

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return eq. 3 of this rank's masks, with the masks of all ranks' images."""
        views, box = batch.views["global"], batch.extras["global.box"]  # [B, 2, C, H, W], [B, 2, 6]
        maps = [self._map(self.backbone, view) for view in views.unbind(dim=1)]  # [B, C, h, w] each
        height, width = maps[0].shape[-2:]
        cells = grid_cells(box, height, width, self.config.grid).flatten(2)  # [B, 2, P]
        masks = self._drawn(cells, batch)  # [B, 2, M]
        z = self._of_masks(self.projector, maps, cells, masks)  # [B, 2, M, D]
        p, targets = z, z
        if self.config.variant == "b":
            p = torch.stack([_each(self.predictor, view) for view in z.unbind(dim=1)], dim=1)
            targets = self._targets(views, cells, masks)
        out = detcon(p, masks, targets, dist.all_gather(targets), dist.own_rows(targets), self.config.temperature)
        metrics = {"agreement": out.agreement, "masks_matched": out.matched, **batch_collapse(z[:, 0, 0])}
        return StepOutput(out.loss, metrics)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the target of DetCon_B follow, more and more slowly."""
        if self.config.variant == "b":
            super().after_update(step, batch, carry)

    def _drawn(self, cells: Tensor, batch: Batch) -> Tensor:
        """Return masks [B, 2, M] drawn among the cells [B, 2, P] that each view shows."""
        num_images, num_views, _ = cells.shape
        numbers = torch.from_numpy(batch.random("detcon.masks").uniforms(num_views * self.config.num_masks))
        by_view = to_device(numbers.view(num_images, num_views, -1), cells.device)
        return draw_present(cells, by_view, self.config.grid**2)

    @torch.no_grad()
    def _targets(self, views: Tensor, cells: Tensor, masks: Tensor) -> Tensor:
        """Return the slow copy's projections of the same masks, [B, 2, M, D]."""
        backbone, projector = self.teacher.module.children()
        return self._of_masks(projector, [self._map(backbone, view) for view in views.unbind(dim=1)], cells, masks)

    def _of_masks(self, projector: nn.Module, maps: Sequence[Tensor], cells: Tensor, masks: Tensor) -> Tensor:
        """Return projections of the mean features under each mask, [B, 2, M, D]; each view is normalised separately."""
        is_under = masks[..., None] == cells[:, :, None]  # [B, 2, M, P]
        vectors = []
        for under, values in zip(is_under.unbind(dim=1), maps, strict=True):
            rows = at_least_fp32(values).flatten(2).mT  # [B, P, C]
            # drawn masks are among those that the view shows, so no sum is 0
            shares = under.to(rows.dtype) / under.sum(dim=2, keepdim=True)  # [B, M, P]
            vectors.append(_each(projector, shares @ rows))
        return torch.stack(vectors, dim=1)

    def _map(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """Return the features of all places of one view, [B, C, h, w]."""
        return features_and_map(backbone, images, self.stage)[1]


def _each(network: nn.Module, vectors: Tensor) -> Tensor:
    """Apply a network to each vector of [B, M, C]."""
    out: Tensor = network(vectors.flatten(0, 1)).unflatten(0, vectors.shape[:2])
    return out
