"""VICRegL: Self-Supervised Learning of Local Visual Features.

Bardes, Ponce and LeCun 2022, arXiv 2210.01571. VICReg's criterion of images, and beside it the same criterion of pairs
of places: each place of a view with the place of the other that is nearest in the image, and with the one whose
embedding is nearest; of both the best pairs count. The network serves segmentation and classification.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.ranges import Amount, Area, Areas, Count, NotEmpty, Share, Within
from raysl.losses import at_least_fp32, best_matches, spread
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.setup_checks import check_batch, check_map_stage, check_two_views
from raysl.nn import COLLAPSE, GROUPS, batch_collapse, centred, features_and_map, last_map, mlp, products
from raysl.nn.places import place_centres
from raysl.transforms import Mask, ViewRecipe
from raysl.transforms.recipes import AsymmetricCrops, MultiCrop, NumLocal

Width = Annotated[int, Within(2, 65_536)]
EACH = "donot_use_mm_for_euclid_dist"
TERMS = ("invariance", "variance", "covariance")


@dataclass(frozen=True, kw_only=True)
class AlternatingCrops(AsymmetricCrops, MultiCrop):
    """Two large views, and small ones where they are asked for; the second, fourth, ... of either size are blurred and
    solarised like BYOL's second view (the authors' code, transforms.py).

    >>> {name: len(views) for name, views in AlternatingCrops(num_local=6).recipe().groups.items()}
    {'global': 2, 'local': 6}
    """

    min_scale: Area = 0.08
    """Smallest area of a large view as a share of the image; 0.4 beside small ones."""
    num_local: NumLocal = 0
    """Small views of each image: none of ResNets, 6 of ConvNeXts."""
    local_scale: Areas = (0.08, 0.4)
    """Areas of small views as shares of the image."""

    def recipe(self, mask: Mask | None = None) -> ViewRecipe:
        """Return the groups "global" and "local"."""
        groups = super().recipe(mask).groups
        second = replace(self, blur_p=self.second_blur_p, solarize_p=self.second_solarize_p)._chain()
        views = enumerate(groups.get("local", ()))
        local = tuple(replace(view, transforms=second) if number % 2 else view for number, view in views)
        return ViewRecipe(groups | ({"local": local} if local else {}))


class Places(NamedTuple):
    """The places of one view: embeddings [B, P, E] and centres in the image [B, P, 2]."""

    z: Tensor
    centres: Tensor


class VICRegL(Method):
    """Agreement of images, and of their places, whose dimensions vary independently."""

    logged = (*TERMS, *(f"local_{name}" for name in TERMS), *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's ImageNet settings for ResNets."""

        name: str = "vicregl"
        alpha: Share = 0.75
        """Weight of the criterion of images; that of places has the rest (section 3.3; 0.9 and 0.75 in table 1)."""
        invariance: Amount = 25.0
        """Weight lambda of the mean squared differences."""
        variance: Amount = 25.0
        """Weight mu of the hinges of the standard deviations, a mean over dimensions and views."""
        covariance: Amount = 1.0
        """Weight nu of the squared covariances, a mean over views."""
        target_std: Annotated[float, Within(0, 1e6, above=True)] = 1.0
        """Standard deviation from which on a dimension costs nothing."""
        eps: Annotated[float, Within(1e-12, 1)] = 1e-4
        """Added to a variance before its root."""
        num_matches: Annotated[tuple[Count, ...], NotEmpty()] = (20, 4)
        """Pairs gamma of places that count, the nearest: of a large view's places with those of another view, and of
        that view's places, be it large or small, with the first one's (section 3.2 and the authors' code)."""
        match_all_features: bool = False
        """Whether all places count where those with the nearest embeddings are matched, as in the authors' code, and
        not the best pairs alone."""
        dim: Width = 8192
        """Width of the three layers of the images' expander."""
        local_dim: Width = 512
        """Width of the three layers of the places' expander."""
        norm: Literal["batch", "layer"] = "batch"
        """Normalisation in both expanders: "batch" of ResNets, "layer" of ConvNeXts (the authors' code)."""
        stage: str | None = None
        """Stage of the backbone whose places are compared. Default: the one in front of the features."""
        views: AlternatingCrops = field(default_factory=AlternatingCrops)
        """Two large crops as in BYOL, and small ones where they are asked for."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, info = self.config, backbone.info(backbone.config)
        self.stage: str = config.stage or last_map(info)
        norm: Literal[True, "layer"] = "layer" if config.norm == "layer" else True
        dim, local_dim, channels = config.dim, config.local_dim, info.stages[self.stage]
        self.expander = mlp([backbone.feature_dim, dim, dim, dim], norm=norm, last_bias=False)
        self.local_expander = mlp([channels, local_dim, local_dim, local_dim], norm=norm, last_bias=False)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse other than two large views or numbers of matches, too small batches, and stages that are not there."""
        check_two_views(setup, "VICRegL compares two large views with each other and with the small ones")
        check_batch(setup, "one image has no variance")
        check_map_stage(setup)
        config: Any = setup.config.method
        if (num := len(config.num_matches)) != 2:
            raise ConfigError(f"method.num_matches: {num} given; give two, such as [20, 4]")

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the views with their boxes, which say which places are near each other."""
        return super().views(setup).with_boxes()

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return alpha times the criterion of images and 1 - alpha times that of places, on this rank's images with
        variances and covariances of the whole global batch (section 3.3)."""
        embedded, view_places = [], []
        for images, box in self._each_view(batch):
            h, values = features_and_map(self.backbone, images, self.stage)  # [B, F], [B, C, y, x]
            embedded.append(at_least_fp32(self.expander(h)))
            rows = values.flatten(2).transpose(1, 2)  # [B, P, C]
            z = at_least_fp32(self.local_expander(rows.flatten(0, 1))).view(*rows.shape[:2], -1)
            centres = place_centres(box, *values.shape[-2:]).flatten(1, 2)
            view_places.append(Places(z, centres))
        z = torch.stack(embedded, dim=1)  # [B, V, D]
        of_images, of_places = self._of_images(z), self._of_places(view_places)
        terms = self.config.alpha * of_images + (1 - self.config.alpha) * of_places  # [3]
        weighted = (getattr(self.config, name) * term for name, term in zip(TERMS, terms, strict=True))
        loss = sum(weighted, start=z.new_zeros(()))
        metrics = dict(zip(self.logged, torch.cat([of_images, of_places]).detach(), strict=False))
        return StepOutput(loss, metrics | batch_collapse(z[:, 0]))

    def _each_view(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images [B, C, H, W] of each view, large ones first, and their boxes [B, 6]."""
        for group in GROUPS:
            if group in batch.views:
                yield from zip(batch.views[group].unbind(1), batch.extras[f"{group}.box"].unbind(1), strict=True)

    def _of_images(self, z: Tensor) -> Tensor:
        """Return the three terms [3] of embeddings [B, V, D], of which the first two are those of large views."""
        pairs = [F.mse_loss(z[:, one], z[:, other]) for one, other in _pairs(z.shape[1])]
        hinges, squares = self._spread(z)
        return torch.stack([torch.stack(pairs).mean(), hinges.mean(), squares.mean()])

    def _of_places(self, views: Sequence[Places]) -> Tensor:
        """Return the three terms [3], a mean over all pairs of a large view with another one."""
        return torch.stack([self._of_pair(views[one], views[other]) for one, other in _pairs(len(views))]).mean(dim=0)

    def _of_pair(self, first: Places, second: Places) -> Tensor:
        """Return the three terms [3] of a large view and another one, the sum of those of both ways to match, each a
        mean over both directions."""
        matched = []  # of each way and direction: [B, 2, M, E]
        with torch.no_grad():
            # Number by number: places of a grid are often equally near, and a product's rounding would choose one.
            by_location = torch.cdist(first.centres, second.centres, compute_mode=EACH)
            by_features = torch.cdist(first.z, second.z, compute_mode=EACH)
        for distances, takes_all in ((by_location, False), (by_features, self.config.match_all_features)):
            directions = ((first, second, distances), (second, first, distances.mT))
            for (one, other, away), num in zip(directions, self.config.num_matches, strict=True):
                nearest, partners = best_matches(away, one.z.shape[1] if takes_all else num)
                matched.append(torch.stack([_rows(one.z, nearest), _rows(other.z, partners)], dim=1))
        invariance = torch.stack([F.mse_loss(pairs[:, 0], pairs[:, 1]) for pairs in matched]).mean()
        slots = [pairs.flatten(1, 2) for pairs in matched]  # [B, 2*M, E] each
        # all sets of pairs share one exchange between ranks, and are averaged set by set afterwards
        hinges, squares = self._spread(torch.cat(slots, dim=1))  # [S] each
        sizes = [rows.shape[1] for rows in slots]
        means = [torch.stack([part.mean() for part in torch.split(terms, sizes)]).mean() for terms in (hinges, squares)]
        # the mean over both ways to match, doubled, is their sum
        return 2 * torch.stack([invariance, *means])

    def _spread(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variance and covariance terms [S] of S embeddings of each image, [B, S, D], over all ranks'
        images."""
        rows, num_rows = centred(z)
        covariances = products(rows, rows, same_loss=True) / (num_rows - 1)  # [S, D, D]
        return spread(covariances, self.config.target_std, self.config.eps)


def _pairs(num_views: int) -> list[tuple[int, int]]:
    """Return the numbers of a large view and of each other view, for both large ones."""
    return [(one, other) for one in range(2) for other in range(num_views) if one != other]


def _rows(z: Tensor, index: Tensor) -> Tensor:
    """Return the embeddings [B, M, E] of the places `index` [B, M] among [B, P, E]."""
    return z.gather(1, index[:, :, None].expand(-1, -1, z.shape[2]))
