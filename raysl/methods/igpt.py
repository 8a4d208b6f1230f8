"""iGPT: Generative Pretraining from Pixels.

Chen, Radford, Child, Wu, Jun, Luan and Sutskever 2020, ICML, proceedings.mlr.press/v119/chen20s.html. A small image is
a sequence of pixels, each a word of a palette of 512 colours, and a transformer predicts the next one, as GPT does; or,
as BERT does, pixels that are hidden from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.ranges import Within
from raysl.hashing import hash_words
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import need_mask_token
from raysl.methods.shared.reconstruction import Reconstruction
from raysl.nn.backbones.palette import LEVELS, PaletteEmbed
from raysl.nn.backbones.vit import ViT
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import Crops, RandomMask


class IGPT(Method):
    """Predicts the colour of each pixel from the pixels before it, or of hidden pixels from all others."""

    logged = ("color_top1", *COLLAPSE)
    backbone: ViT

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's settings; its networks are `backbone=vit` with a palette."""

        name: str = "igpt"
        objective: Literal["next", "masked"] = "next"
        """Predict the next pixel (eq. 2), of a `backbone.causal` network, or masked ones (eq. 3), of one that is
        not."""
        mask_ratio: Annotated[float, Within(0, 1, above=True, below=True)] = 0.15
        """Share of the pixels that objective=masked hides (section 2.1)."""
        kmeans_iters: Annotated[int, Within(1, 1000)] = 50
        """Rounds of the k-means that finds the palette before the first epoch."""
        views: Crops = field(
            default_factory=lambda: Crops(
                size=32, num=1, min_scale=0.34, flip=0.0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0
            )
        )
        """One small crop without colours, of about the share that squares of 224 are of sides from 256 to 384."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.embed.set_range(setup.config.data.mean, setup.config.data.std)
        self.head = nn.Linear(self.backbone.token_dim, self.embed.embedding.num_embeddings, bias=False)
        nn.init.zeros_(self.head.weight)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without a palette, and whose attention or features do not fit the objective."""
        backbone: Any = setup.config.backbone
        if getattr(backbone, "palette", None) is None:
            raise ConfigError(
                "backbone.palette is not set, and iGPT predicts its colours; set backbone=vit backbone.palette=512 "
                "backbone.patch_size=1"
            )
        is_next = setup.method.objective == "next"
        if backbone.causal != is_next:
            raise ConfigError(
                f"backbone.causal is {str(backbone.causal).lower()} and method.objective is {setup.method.objective}; "
                f"set backbone.causal={str(is_next).lower()}, so that no pixel sees "
                + ("those that it predicts" if is_next else "only a part of what masks leave")
            )
        if is_next and backbone.output != "mean":
            raise ConfigError(
                f"backbone.output is {backbone.output}, and the class token comes before all pixels and sees none of "
                "them; set backbone.output=mean"
            )
        if not is_next:
            need_mask_token(setup, "iGPT's masked objective")

    @classmethod
    def mask(cls, setup: Setup) -> RandomMask | None:
        """Return the mask of each view, for objective=masked."""
        config = setup.method
        return RandomMask(patch_size=1, ratio=config.mask_ratio) if config.objective == "masked" else None

    @property
    def embed(self) -> PaletteEmbed:
        """The backbone's palette."""
        embed = self.backbone.patch_embed
        assert isinstance(embed, PaletteEmbed)
        return embed

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """Before the first epoch, find the palette of all training images; given weights bring theirs along."""
        if step.index > 0 or self.config.weights is not None:
            return
        counts = torch.zeros(LEVELS**3, dtype=torch.int64, device=self.embed.table.device)
        for batch in batches():
            points = self.embed.points(batch.views["image"][:, 0]).flatten()
            counts.index_add_(0, points, torch.ones_like(points))
        self.embed.fit(dist.all_sum(counts), self.config.kmeans_iters, hash_words(self.setup.seed, step.index) >> 1)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean of -log of the share of each predicted pixel's colour (section 2.1)."""
        images = batch.views["global"].flatten(0, 1)  # [N, C, H, W]; N = B*V
        colors, num_prefix = self.embed.words(images), self.backbone.num_prefix_tokens  # [N, L]
        mask = None if self.config.objective == "next" else batch.extras["global.mask"].flatten(0, 1)  # [N, H, W]
        tokens, scores = self._predict(images, mask)
        weights = torch.ones_like(colors) if mask is None else mask.flatten(1)
        losses = F.cross_entropy(scores.flatten(0, 1), colors.flatten(), reduction="none").view_as(colors)
        weights = weights.to(losses.dtype)
        share = weights / weights.sum(dim=1, keepdim=True)  # of its image's pixels [N, L]
        hits = (scores.detach().argmax(dim=2) == colors).to(losses.dtype)
        h = tokens.detach()[:, num_prefix:].mean(dim=1).view(*batch.views["global"].shape[:2], -1)  # [B, V, D]
        metrics = {"color_top1": 100 * (share * hits).sum(dim=1).mean(), **batch_collapse(h)}
        return StepOutput((share * losses).sum(dim=1).mean(), metrics)

    def reconstruct(self, batch: Batch) -> Reconstruction | None:
        """Return the likeliest colour of each pixel given those before it, or of hidden pixels; None before the palette
        is there."""
        if not bool(self.embed.colors.any()):
            return None
        images = batch.views["global"][:, 0]
        mask = None if self.config.objective == "next" else batch.extras["global.mask"][:, 0]
        _, scores = self._predict(images, mask)
        likely = self._painted(scores.argmax(dim=2), images)
        # the network sees colours of the palette
        seen = self._painted(self.embed.words(images), images)
        if mask is not None:
            hidden = mask[:, None]  # [N, 1, H, W]
            seen, likely = torch.where(hidden, torch.nan, seen), torch.where(hidden, likely, seen)
        return Reconstruction(images, seen, likely)

    def _painted(self, numbers: Tensor, images: Tensor) -> Tensor:
        """Return the palette's colours of these numbers [N, L] as normalised images of the shape of `images`."""
        colors = (self.embed.colors - self.embed.mean) / self.embed.std  # [K, 3]
        return colors[numbers].transpose(1, 2).reshape(images.shape).to(images.dtype)

    def _predict(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return all tokens [N, P + L, D] and the scores of the colours of each pixel [N, L, K]; the next pixels are
        predicted where there is no mask."""
        num_prefix = self.backbone.num_prefix_tokens
        tokens = self.backbone.tokens(images, mask)
        # a token predicts the next pixel: the last prefix token the first one, and the last pixel none
        predicting = tokens[:, num_prefix - 1 : -1] if mask is None else tokens[:, num_prefix:]
        return tokens, at_least_fp32(self.head(predicting))
