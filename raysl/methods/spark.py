"""SparK: Designing BERT for Convolutional Networks, Sparse and Hierarchical Masked Modeling.

Tian, Jiang, Diao, Lin, Wang and Yuan 2023, arXiv 2301.03580. A convolutional network sees some squares of an image, as
if its convolutions were sparse. A decoder, discarded later, gets its maps of several sizes with a learned vector in
each hidden square, and predicts the pixels of these squares.

Where the paper leaves a choice open this is the authors' code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated

import torch
from torch import Tensor, nn

from raysl.components import resolve
from raysl.config.linked import find_size_setting
from raysl.config.ranges import Within
from raysl.losses import masked_patch_mse, patchify
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction
from raysl.nn import COLLAPSE, batch_collapse
from raysl.nn.sparse import Sparse
from raysl.transforms import Crops, RandomMask


class SparK(Method):
    """Predicts the pixels of hidden squares from a convolutional network's maps of the others."""

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The authors' ImageNet settings."""

        name: str = "spark"
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.6
        """Hidden share of the squares, each as large as one place of the backbone's last map (section 3.1)."""
        num_maps: Annotated[int, Within(1, 16)] = 4
        """Maps of the backbone that the decoder gets, from the last on, each twice as large as the one before (section
        3.3); of a backbone with fewer, all."""
        decoder_width: Annotated[int, Within(1, 65_536)] = 768
        """Channels of the decoder at the size of the last map; half as many at each doubling (the authors' code)."""
        is_normalised: bool = True
        """Predict pixels minus their square's mean, divided by its standard deviation (section 3.3)."""
        views: Crops = field(
            default_factory=lambda: Crops(
                num=1, min_scale=0.67, interpolation="bicubic", jitter_p=0.0, grayscale_p=0.0, blur_p=0.0
            )
        )
        """One crop of at least two thirds, mirrored with probability 1/2, without colours (the authors' code)."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, pyramid = self.config, Pyramid.of(setup)
        self.squares = pyramid.mask(config.mask_ratio)
        self.stages = pyramid.stages
        widths = [backbone.stage_widths[name] for name in self.stages]
        densify = [
            Densify(width, config.decoder_width // 2**number, kernel_size=3 if number else 1)
            for number, width in enumerate(widths)
        ]
        self.densify = nn.ModuleList(densify)
        self.decoder = Decoder(config.decoder_width, pyramid.num_doublings, backbone.in_channels)
        self.sparse = Sparse([backbone, *(layer.norm for layer in densify)])

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones that are not convolutional or whose maps do not halve, and masks of all or no squares."""
        pyramid, config = Pyramid.of(setup), setup.method
        if config.decoder_width % 2**pyramid.num_doublings:
            raise ConfigError(
                f"method.decoder_width is {config.decoder_width}, and is halved {pyramid.num_doublings} times; give a "
                f"multiple of {2**pyramid.num_doublings}"
            )
        num_masked = pyramid.mask(config.mask_ratio).num_masked(pyramid.num_squares)
        if not 0 < num_masked < pyramid.num_squares:
            raise ConfigError(
                f"method.mask_ratio={config.mask_ratio:g} hides {num_masked} of the {pyramid.num_squares} squares of "
                f"{pyramid.mask_size} pixels of a view; SparK needs hidden and visible ones: take a ratio nearer to "
                "0.5, or larger views"
            )

    @classmethod
    def mask(cls, setup: Setup) -> RandomMask:
        """Return the mask of each view."""
        return Pyramid.of(setup).mask(setup.method.mask_ratio)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the squared error of the hidden squares' pixels (section 3.3)."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        mask = batch.extras["global.mask"].flatten(0, 1)  # [B*V, h, w]
        maps, pixels = self._predict(images, mask)
        if not self.setup.config.train.recompute:
            self.sparse.show_all()
        patches = patchify(images, self.squares.patch_size)  # [B*V, L, p*p*C]
        loss = masked_patch_mse(pixels, patches, mask.flatten(1), self.config.is_normalised)
        # the mean of the visible places alone: all others are 0
        last = maps[self.stages[0]].detach()
        h = last.sum(dim=(2, 3)) / self._num_visible(mask)  # [B*V, D]
        return StepOutput(loss, batch_collapse(h.view(*batch.views["global"].shape[:2], -1)))

    def after_backward(self, step: Step) -> None:
        """Let the backbone see whole images again; layers that `train.recompute` runs again in the backward pass need
        the mask until here."""
        self.sparse.show_all()

    def reconstruct(self, batch: Batch) -> Reconstruction:
        """Return the predictions of hidden squares among the visible ones."""
        images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
        _, pixels = self._predict(images, mask)
        self.sparse.show_all()
        return patch_reconstruction(images, mask.flatten(1), pixels, self.squares.patch_size, self.config.is_normalised)

    def _predict(self, images: Tensor, mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the sparse maps by stage and the pixels of all squares [N, L, p*p*C]; squares stay hidden from the
        backbone afterwards.

        Args:
            images: whole images [N, C, H, W].
            mask: bool [N, h, w], True for hidden squares, as many in each image.
        """
        self.sparse.show(mask, self._num_visible(mask))
        maps = self.backbone.stages(self.sparse.hide(images), self.stages)
        dense = [layer(maps[name], self.sparse) for name, layer in zip(self.stages, self.densify, strict=True)]
        return maps, patchify(self.decoder(dense), self.squares.patch_size)

    def _num_visible(self, mask: Tensor) -> int:
        """Return the number of visible squares of each image, which views of other sizes have more or fewer of."""
        num_squares = mask.shape[1] * mask.shape[2]
        return num_squares - self.squares.num_masked(num_squares)


class Densify(nn.Module):
    """A sparse map brought to the decoder's width, with a learned vector in its hidden squares (section 3.3).

    Args:
        width: channels of the map.
        out: channels of the decoder at its size.
        kernel_size: side of the convolution from one to the other.
    """

    def __init__(self, width: int, out: int, kernel_size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.mask_token = nn.Parameter(torch.empty(width))
        nn.init.trunc_normal_(self.mask_token, std=0.02, a=-0.02, b=0.02)
        # where widths are equal, the last map needs no convolution (the authors' code)
        is_same = kernel_size == 1 and width == out
        self.project: nn.Module = (
            nn.Identity() if is_same else nn.Conv2d(width, out, kernel_size, padding=kernel_size // 2)
        )

    def forward(self, x: Tensor, sparse: Sparse) -> Tensor:
        """Return a dense map [B, out, H, W] of a sparse one [B, width, H, W]."""
        token = self.mask_token.to(x.dtype)[:, None, None]  # [C, 1, 1]
        out: Tensor = self.project(torch.where(sparse.spread(x), self.norm(x), token))
        return out


class Decoder(nn.Module):
    """A light U-Net from maps to pixels, which doubles the side and halves the width in each block (section 3.3).

    Args:
        width: channels at the size of the last map, a multiple of 2 ** num_blocks.
        num_blocks: number of doublings up to the size of the image.
        channels: channels of the image.
    """

    def __init__(self, width: int, num_blocks: int, channels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_doubling(width // 2**number) for number in range(num_blocks))
        self.pixels = nn.Conv2d(width // 2**num_blocks, channels, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.trunc_normal_(layer.weight, std=0.02)
            elif isinstance(layer, nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return images [B, C, H, W].

        Args:
            maps: dense maps, the smallest first, each with the width and the size of the decoder there.
        """
        x = maps[0]
        for number, block in enumerate(self.blocks):
            x = block(x if number == 0 or number >= len(maps) else x + maps[number])
        return self.pixels(x)  # type: ignore[no-any-return]


def _doubling(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(inplace=True),
        nn.Conv2d(width, width // 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(width // 2),
    )


@dataclass(frozen=True)
class Pyramid:
    """The maps of a backbone that a decoder gets."""

    stages: tuple[str, ...]
    """Names of their stages, the last and smallest first."""
    mask_size: int
    """Side in pixels of the square of an image that one place of the smallest map stands for."""
    num_squares: int
    """Number of these squares in a view."""
    num_doublings: int
    """Number of doublings from the side of the smallest map to that of a view."""

    def mask(self, ratio: float) -> RandomMask:
        """Return the mask that hides a share of the squares of each view."""
        return RandomMask(patch_size=self.mask_size, ratio=ratio)

    @classmethod
    def of(cls, setup: Setup) -> "Pyramid":
        """Read them from passes of the network without numbers.

        Raises:
            ConfigError: if its last map does not become a view by doubling, or squares cannot be hidden from it.
        """
        size, config = setup.method.views.size, setup.config.backbone
        kind: type[Backbone] = resolve("backbone", config.name)
        network = kind.without_weights(config).eval()
        images = torch.zeros(2, network.in_channels, size, size, device="meta")
        outputs = network.stages(images, list(network.stage_widths))
        # of several maps of one side the deepest
        stages = {output.shape[-1]: name for name, output in outputs.items() if output.ndim == 4}
        if not stages:
            raise ConfigError(f"backbone {config.name!r} names no stages that are maps; set backbone=resnet")
        last = min(stages)
        doublings = round(math.log2(size / last))
        if size != last * 2**doublings or doublings == 0:
            raise ConfigError(
                f"views of {size} pixels become maps of {last}, and SparK's decoder doubles these until they are as "
                f"large as a view; set {find_size_setting(setup.config, size)}={last * 2 ** max(doublings, 1)}"
            )
        sides = [last * 2**number for number in range(min(doublings, setup.method.num_maps))]
        names = tuple(stages[side] for side in takewhile(stages.__contains__, sides))
        _check_sparse(network, images, names, last)
        return cls(names, size // last, last**2, doublings)


def _check_sparse(network: Backbone, images: Tensor, names: Sequence[str], side: int) -> None:
    """Refuse a network that runs layers over whole maps, such as squeeze and excitation."""
    sparse = Sparse([network])
    sparse.show(torch.zeros(len(images), side, side, dtype=torch.bool, device=images.device), side**2)
    try:
        network.stages(images, names)
    except ValueError as error:
        raise ConfigError(
            f"SparK hides squares of an image from every layer, and backbone {network.config.name!r} does not allow "
            f"it: {error.__cause__ or error}; set backbone=resnet"
        ) from error
