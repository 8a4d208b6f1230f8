"""A packaged configuration with a tiny network and four images: quick to build and to step."""

from dataclasses import dataclass
from functools import cache

import torch

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.methods.method import Method, StepOutput
from raysl.plan.setup import Setup
from raysl.train.prepare import check_views
from raysl.train.state import TrainState
from raysl.transforms import normalize
from tests.methods.properties import TINY

ROWS = 4
"""Images in the batch."""
SMALL_HEAD = "num_prototypes=512", "hidden_dim=64"
LESS = {
    "aim": ("method.head_depth=1", "method.head_width=64"),
    "cmae": ("method.decoder_depth=1", "method.decoder_width=48", "method.decoder_heads=3", "method.hidden_dim=64"),
    "data2vec": ("method.num_layers=2",),
    "all4one": ("method.queue_size=512", "method.hidden_dim=64", "method.predictor_dim=64"),
    "barlow_twins": ("method.dim=64",),
    "capi": (
        "method.num_clusters=512",
        "method.predictor_width=64",
        "method.predictor_depth=2",
        "method.predictor_heads=4",
    ),
    "densecl": ("method.queue_size=512",),
    "cross_mae": ("method.decoder_depth=1", "method.decoder_width=48", "method.decoder_heads=3"),
    "directclr": ("method.dim=16",),
    "emp_ssl": ("method.hidden_dim=64", "method.output_dim=32", "data.image_size=64"),
    "frossl": ("method.hidden_dim=64", "method.output_dim=32"),
    "mixmim": ("method.decoder_depth=1", "method.decoder_width=48", "method.decoder_heads=3"),
    "mmcr": ("method.hidden_dim=64", "method.output_dim=32"),
    "nnsiam": ("method.queue_size=512", "method.output_dim=64"),
    "nnbyol": ("method.queue_size=512", "method.hidden_dim=64"),
    "dino": tuple(f"method.head.{size}" for size in SMALL_HEAD),
    "dino_v2": tuple(f"method.{head}.{size}" for head in ("head", "patch_head") for size in SMALL_HEAD),
    "franca": tuple(f"method.{head}.{size}" for head in ("head", "patch_head") for size in SMALL_HEAD),
    "paka": (
        *(f"method.{head}.{size}" for head in ("head", "patch_head") for size in SMALL_HEAD),
        "method.paka_hidden_dim=64",
        "method.paka_dim=32",
    ),
    "dino_v3": (
        *(f"method.{head}.{size}" for head in ("head", "patch_head") for size in SMALL_HEAD),
        "method.gram_teacher=untrained",
    ),
    "ibot": tuple(f"method.head.{size}" for size in SMALL_HEAD),
    "ijepa": ("method.predictor_depth=2",),
    "mae": ("method.decoder_depth=1", "method.decoder_width=48", "method.decoder_heads=3"),
    "pixio": ("method.mask_block=2", "method.decoder_depth=1", "method.decoder_width=48", "method.decoder_heads=3"),
    "mim_refiner": (
        "method.num_heads=2",
        "method.queue_size=512",
        "method.hidden_dim=64",
        "method.predictor_dim=64",
    ),
    "nnclr": ("method.queue_size=512",),
    "ressl": ("method.queue_size=512", "method.hidden_dim=64"),
    "distill": ("method.teacher=untrained", "method.target=features", "method.label_weight=0"),
    "salt": ("method.predictor_depth=2", "method.target=latents", "method.teacher=untrained"),
    "smog": ("method.num_groups=4", "method.queue_size=512"),
    "spark": ("method.decoder_width=64", "backbone.num_stages=3"),
    "ssl_ey": ("method.dim=64",),
    "vibcreg": ("method.dim=64",),
    "vicreg": ("method.dim=64",),
    "vicregl": ("method.dim=64", "method.local_dim=32"),
    "wmse": ("method.output_dim=2", "method.sub_batch=4"),
}
"""Settings of methods whose published ones take gigabytes, larger batches, or a teacher of the user's."""


@cache
def small_words(name: str) -> tuple[str, ...]:
    """Settings with which the network and the heads of a configuration are small."""
    published = load_config(name)
    return (*TINY[published.backbone.name], *LESS.get(published.method.name, ()))


@dataclass(frozen=True)
class SmallCopy:
    """What is built of a configuration, and a batch of its views."""

    setup: Setup
    method: Method
    batch: Batch

    @classmethod
    def of(cls, name: str) -> "SmallCopy":
        """Build the configuration of a name; its views have the size of its images, unless they are cut into tiles."""
        config = load_config(name, [*small_words(name), f"train.batch_size={ROWS}"])
        setup = Setup.of(config, num_samples=20_000, num_classes=10)
        recipe = check_views(setup, Classes.of(config))
        is_cut = next(iter(recipe.groups.values()))[0].tiles is not None
        assert recipe.size == config.data.image_size or is_cut
        index = torch.arange(ROWS)
        images = [torch.randint(0, 256, (3, 40 + i, 50), dtype=torch.uint8) for i in range(ROWS)]
        made = recipe.augment(recipe.crop(images, index.numpy(), setup.seed, 0), index.numpy(), setup.seed, 0)
        floats = {group: normalize(view, config.data.mean, config.data.std) for group, view in made.views.items()}
        batch = Batch(floats, index, index, extras=made.extras, seed=setup.seed)
        return cls(setup, TrainState.create(setup).method, batch)

    def forward_and_backward(self) -> StepOutput:
        """Take the first step as far as the gradient; its loss and its gradient are finite."""
        out: StepOutput = self.method(self.batch, self.setup.plan.step(0))
        out.loss.backward()
        assert torch.isfinite(out.loss)
        assert all(torch.isfinite(p.grad).all() for p in self.method.parameters() if p.grad is not None)
        return out
