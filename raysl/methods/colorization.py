"""Colorization: Colorful Image Colorization.

Zhang, Isola and Efros 2016, arXiv 1603.08511. The network sees the lightness of an image and predicts the colour of
each position: one of the bins of a grid over the ab plane of CIE `L*a*b*`, rare colours counting more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.linked import find_size_setting
from raysl.config.ranges import Positive, Share, Within
from raysl.losses import at_least_fp32
from raysl.methods.method import Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.reconstruction import Reconstruction
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms.functional_color import from_lab, to_lab
from raysl.transforms.recipes import Crops

GRID = 10.0
"""Distance between neighbouring bins in the ab plane (section 2.1)."""
ANNEALING = 0.38
"""Temperature of the mean that turns a distribution into one colour (section 2.3)."""


class Colorization(Method):
    """Predicts the colours of an image from its lightness.

    The backbone takes images of three channels, as in benchmarks: in training each channel is L / 100, normalised like
    any other image. Colours are predicted on the grid of the backbone's last feature map, or of its patches.

    Attributes:
        bins: float [Q, 2], a and b of the bins' centres, see `gamut_bins`.
        class_weights: float [Q], weight of each bin in the loss (equation 4); 1 before the first epoch.
    """

    logged = ("color_top1", *COLLAPSE)
    evaluated = ("color_top1", "color_error")
    bins: Tensor
    class_weights: Tensor
    mean: Tensor
    std: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings."""

        name: str = "colorization"
        rebalancing: Share = 0.5
        """Lambda of equation 4: a colour's weight is the inverse of its prior mixed with this share of the uniform
        distribution. At 1 all colours weigh the same, and the prior is not computed."""
        neighbours: Annotated[int, Within(1, 64)] = 5
        """Number of nearest bins that share a colour (section 2.1)."""
        sigma: Positive = 5.0
        """Width of the Gaussians of the shares and of the smoothing of the prior (sections 2.1 and 2.2)."""
        cells: Annotated[int, Within(1, 16)] = 1
        """Colours per side of a position of the last feature map. The paper predicts one for 4 x 4 pixels, which takes
        8 with ResNet-50."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2; its colours stay."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        bins = gamut_bins()
        self.stage, width, side = _last_map(backbone, self.config.views.size)
        self.side = side * self.config.cells
        self.classifier = nn.Conv2d(width, len(bins) * self.config.cells**2, kernel_size=1)
        data = setup.config.data
        for name, values in (("mean", data.mean), ("std", data.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)  # [3, 1, 1]
        self.register_buffer("bins", bins.float(), persistent=False)
        self.register_buffer("class_weights", torch.ones(len(bins)))

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse images without colours, backbones with neither patches nor stages, and patches that do not cover a
        view."""
        if setup.config.data.channels != "rgb":
            raise ConfigError(
                f"data.channels is {setup.config.data.channels}, and colorization needs RGB images, of which it "
                "shows the network the lightness itself; leave data.channels out"
            )
        size, patch_size = setup.method.views.size, setup.backbone.patch_size
        if patch_size is None and not setup.backbone.stages:
            raise ConfigError(
                f"backbone {setup.config.backbone.name!r} names no stages and has no patches, and colours are "
                "predicted on its last feature map; give it `stage_widths`, or set backbone=resnet or vit"
            )
        if patch_size is not None and size % patch_size:
            fit = f"{find_size_setting(setup.config, size)}={(size // patch_size + 1) * patch_size}"
            raise ConfigError(
                f"views of {size} pixels are not covered by patches of {patch_size}; set {fit}, or another "
                "backbone.patch_size"
            )

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """Before the first epoch, weigh the bins by how often they are in the training images (section 2.2)."""
        if step.index > 0 or self.config.rebalancing == 1:
            return
        counts = torch.zeros(len(self.bins), dtype=torch.int64, device=self.bins.device)
        for batch in batches():
            _, ab = self._lab(batch.views["image"][:, 0])
            bins = soft_encoding(ab, self.bins, 1, self.config.sigma)[0].flatten()
            # not by bincount, for whose size the host waits
            counts.index_add_(0, bins, torch.ones_like(bins))
        weights = rebalancing(dist.all_sum(counts), self.bins, self.config.rebalancing, self.config.sigma)
        self.class_weights.copy_(weights)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Cross entropy with the bins next to each colour, by the weight of the nearest (equations 2 and 3)."""
        views = batch.views["global"]  # [B, V, C, H, W]
        lightness, ab = self._lab(views.flatten(0, 1))  # [N, 3, H, W], [N, h, w, 2]; N = B*V
        bins, shares = soft_encoding(ab, self.bins, self.config.neighbours, self.config.sigma)  # [N, h, w, k] each
        h, log_p = self._predict(lightness)  # [N, D], [N, h, w, Q]
        terms = -(shares * log_p.gather(-1, bins)).sum(dim=-1)  # [N, h, w]
        loss = (self.class_weights[bins[..., 0]] * terms).mean()
        hits = 100 * (log_p.detach().argmax(dim=-1) == bins[..., 0]).float().mean()
        spread = batch_collapse(h.view(*views.shape[:2], -1))
        return StepOutput(loss, {"color_top1": hits, **spread})

    @torch.no_grad()
    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Return the share of positions whose most likely bin is right, in percent [B], and the distance of the
        annealed mean (equation 5) from the colour, in units of the ab plane [B]."""
        views = batch.views["global"]
        lightness, ab = self._lab(views.flatten(0, 1))
        bins, _ = soft_encoding(ab, self.bins, 1, self.config.sigma)
        _, log_p = self._predict(lightness)
        hits = 100 * (log_p.argmax(dim=-1) == bins[..., 0]).to(ab.dtype)  # [N, h, w]
        predicted = self._annealed_mean(log_p)  # [N, h, w, 2]
        error = (predicted - ab).norm(dim=-1)
        rows = {"color_top1": hits, "color_error": error}
        return {name: values.view(len(batch), -1).mean(dim=1) for name, values in rows.items()}

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the lightness of images, and the same with the annealed means of the predicted colours, which are
        enlarged to the size of the images."""
        images = batch.views["global"][:, 0]
        lightness, _ = self._lab(images)
        _, log_p = self._predict(lightness)
        ab = (self._annealed_mean(log_p).permute(0, 3, 1, 2) + 128) / 255  # [N, 2, h, w]
        ab = F.interpolate(ab.to(images.dtype), images.shape[2:], mode="bilinear")
        colored = from_lab(torch.cat([to_lab(images * self.std + self.mean)[:, :1], ab], dim=1))
        return Reconstruction(images, lightness, (colored - self.mean) / self.std)

    def _annealed_mean(self, log_p: Tensor) -> Tensor:
        """Return colours [N, h, w, 2] of log-probabilities of the bins [N, h, w, Q] (equation 5)."""
        return F.softmax(log_p / ANNEALING, dim=-1) @ self.bins.to(log_p.dtype)

    @torch.no_grad()
    def _lab(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the backbone's input for images [N, 3, H, W], of that shape, and the colours to predict [N, h, w, 2]:
        means over the cells of the grid."""
        lab = to_lab(images * self.std + self.mean)  # [N, 3, H, W] in [0, 1]
        lightness = (lab[:, :1] - self.mean) / self.std  # [N, 3, H, W]
        ab = F.adaptive_avg_pool2d(lab[:, 1:], self.side) * 255 - 128  # [N, 2, h, w]
        return lightness, ab.permute(0, 2, 3, 1)

    def _predict(self, lightness: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [N, D] and log-probabilities of the bins [N, h, w, Q]."""
        backbone = self.backbone
        if isinstance(backbone, TokenBackbone):
            patches = backbone.tokens(lightness)[:, backbone.num_prefix_tokens :]  # [N, L, D]
            maps = patches.transpose(1, 2).reshape(len(patches), -1, *backbone.grid(lightness))  # [N, D, h, w]
        else:
            maps = backbone.stages(lightness, [self.stage])[self.stage]
        logits = F.pixel_shuffle(self.classifier(maps), self.config.cells)  # [N, Q, h, w]
        return maps.mean(dim=(2, 3)), F.log_softmax(at_least_fp32(logits).permute(0, 2, 3, 1), dim=-1)


@cache
def gamut_bins() -> Tensor:
    """Return the bins' centres, float64 [Q, 2]: the grid points over ab that are nearest to some sRGB colour.

    Q is 261. The paper has 313 "in gamut" and does not say how they were chosen; the others are nearest to no colour
    that an image can have. The surface of sRGB reaches all ab values of sRGB, so only it is searched.
    """
    levels = torch.linspace(0, 1, 256, dtype=torch.float64)
    down, across = torch.meshgrid(levels, levels, indexing="ij")  # [256, 256] each
    # on each face of the cube one of red, green and blue is 0 or 1, and the other two take all levels
    faces = []
    for level in (torch.zeros_like(down), torch.ones_like(down)):
        faces += [(level, down, across), (down, level, across), (down, across, level)]
    lab = to_lab(torch.stack([torch.stack(face) for face in faces]))  # [6, 3, 256, 256]
    ab = lab[:, 1:].movedim(1, -1).flatten(0, 2) * 255 - 128
    points: Tensor = torch.unique((ab / GRID).round().long(), dim=0)
    return points.double() * GRID


@torch.no_grad()
def soft_encoding(ab: Tensor, bins: Tensor, neighbours: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Return the bins nearest to each colour, the nearest first, and their shares of it (section 2.1).

    >>> bins, shares = soft_encoding(torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 0.0], [9.0, 0.0]]), 1, sigma=5.0)
    >>> bins, shares
    (tensor([0]), tensor([1.]))

    Args:
        ab: colours [..., 2].
        bins: centres [Q, 2].
        neighbours: k, number of bins that share a colour, at most Q.
        sigma: width of the Gaussian of the distance that weighs a bin.

    Returns:
        int64 and float [..., k].
    """
    bins = bins.to(ab.dtype)
    squares = (ab[..., :1] - bins[:, 0]).square() + (ab[..., 1:] - bins[:, 1]).square()  # [..., Q]
    near, nearest = squares.topk(min(neighbours, len(bins)), dim=-1, largest=False)
    return nearest, F.softmax(-near / (2 * sigma**2), dim=-1)


def rebalancing(counts: Tensor, bins: Tensor, share: float, sigma: float) -> Tensor:
    """Return the weight of each bin in the loss [Q], 1 on average over colours (equation 4).

    Args:
        counts: how often each bin was seen [Q].
        bins: centres [Q, 2].
        share: lambda, of the uniform distribution.
        sigma: width of the Gaussian that smooths the counts.
    """
    squares = (bins[:, None] - bins).double().square().sum(dim=-1)  # [Q, Q]
    prior = (-squares / (2 * sigma**2)).exp() @ counts.double()
    prior = prior / prior.sum()
    weights = 1 / ((1 - share) * prior + share / len(bins))
    return weights / (prior * weights).sum()


@torch.no_grad()
def _last_map(backbone: Backbone, size: int) -> tuple[str, int, int]:
    """Return name, width and side of the last feature map for images of this side; the name is empty for patches."""
    if isinstance(backbone, TokenBackbone):
        return "", backbone.token_dim, size // backbone.patch_size
    # in evaluation mode, so that the blank image does not move running statistics
    was_training = backbone.training
    names = list(backbone.stage_widths)
    outputs = backbone.eval().stages(torch.zeros(1, 3, size, size), names)
    backbone.train(was_training)
    maps = [name for name in names if outputs[name].ndim == 4]
    if not maps:
        raise TypeError(f"{type(backbone).__name__} has no stage that is a feature map [B, C, H, W]; name one")
    name = maps[-1]
    return name, outputs[name].shape[1], outputs[name].shape[-1]
