"""DINOv3.

Simeoni et al. 2025, arXiv 2508.10104. The losses of DINOv2 with rotary positions, trained in stages. Long training
makes class tokens better and patches worse; in a second stage Gram anchoring holds the cosines between the patches of
an image to those of an earlier network, which sees the image larger. A third stage goes on with larger images. A
trained network then teaches smaller ones (section 5.2), by the same losses.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.checkpoint_folder import STATE_FILE, local_copy, newest
from raysl.checkpoint.tensors import load_tensors
from raysl.config.ranges import Amount, Every, Length, Location, Share, Side, Within
from raysl.losses import dino, gram
from raysl.methods.dino_v2 import DINOv2
from raysl.methods.franca import Franca
from raysl.methods.method import Backbone, Batch, ConfigError, Setup, TokenBackbone
from raysl.methods.shared.patches import patch_side
from raysl.methods.shared.teacher_networks import read_teacher
from raysl.nn import COLLAPSE, DINOHead, HeadConfig, Teacher
from raysl.schedule import Duration, Step, cosine, linear_over
from raysl.transforms import Affine, AsymmetricMultiCrop, HorizontalFlip, VerticalFlip, View, ViewRecipe

UNTRAINED = "untrained"
"""Name of the backbone as the run begins, also where it begins at random."""
HEADS = {"head": "teacher_head", "patch_head": "teacher_patch_head"}
"""Settings of the two projectors, and the names of those of the teacher in a checkpoint."""


class DINOv3(DINOv2):
    """Predicts a teacher's balanced assignments, while cosines between patches stay those of an earlier network.

    The weights of a Gram teacher and of `Config.teacher` are part of every checkpoint: a resumed run keeps those that
    it started with. The places that they were read from are still needed, for the shape of their networks.
    """

    title = "DINOv3"
    logged = ("class_loss", "patch_loss", "koleo", "gram", "teacher_entropy", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(DINOv2.Config):
        """The first stage, with the authors' settings of a ViT-L/16 on ImageNet-1k (their code); the other stages are
        `configs/continue/dino_v3_gram.yaml`, `dino_v3_high_res.yaml` and `dino_v3_distill.yaml`."""

        name: str = "dino_v3"
        local_weight: Amount = 1.0
        """Factor of the class tokens' loss of small views; 0.5 from the second stage on (the authors' code)."""
        gram_weight: Amount = 0.0
        """Factor of the loss of cosines between patches; 2 in the second stage, 1.5 in the third (the authors' code).
        0 has no Gram teacher."""
        gram_warmup: Length = field(default=Duration.parse("0st"))
        """Duration of that factor's rise from 0 along half a cosine; 1000 updates in the second stage."""
        gram_teacher: Location | None = None
        """Run or checkpoint of raysl whose backbone is the Gram teacher: an early one, whose patches are still good.
        Default: the Gram teacher of `method.weights` if they have one, else the backbone as the run begins, which has
        to begin with weights. The word `untrained` takes it also where it begins at random."""
        gram_size: Side | None = None
        """Side in pixels of the large views, without changes of colour, that the Gram teacher sees: twice that of the
        student's in the paper. Default: theirs."""
        gram_update_every: Every = field(default=Duration.parse("10000st"))
        """How often the Gram teacher becomes a copy of the teacher (section 4.2)."""
        gram_updates: Annotated[int, Within(0, 10**9)] = 0
        """How many times that happens at most; 3 in the second stage (the authors' code)."""
        teacher: Location | None = None
        """Run or checkpoint of method dino_v3 or dino_v2 with as many prototypes, whose teacher and its heads teach,
        and stay as they are (section 5.2). The student then sees views without masks, and its moving average is
        exported. Default: the teacher is that average."""
        teacher_temp_warmup: Length = field(default=Duration.parse("37500st"))
        """Duration of the linear rise of the teacher's temperature (the authors' code: 30 epochs of 1250 updates)."""
        momentum: Share = 0.992
        """Share of the teacher that the first update keeps (the authors' code)."""
        head: HeadConfig = field(default_factory=lambda: HeadConfig(last_layer="linear"))
        """The projector of class tokens (the authors' code)."""
        patch_head: HeadConfig = field(default_factory=lambda: HeadConfig(last_layer="linear"))
        """The projector of patches (the authors' code)."""
        views: AsymmetricMultiCrop = field(
            default_factory=lambda: AsymmetricMultiCrop(min_scale=0.32, local_scale=(0.05, 0.32))
        )
        """Two large crops, masked for the student, and eight small ones (the authors' code)."""

        def is_place(self, field: str, text: str) -> bool:
            return super().is_place(field, text) and text != UNTRAINED

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        self.gram_teacher: Teacher | None = None
        if config.gram_weight > 0:
            is_own = config.gram_teacher in (None, UNTRAINED)
            self.gram_teacher = Teacher(backbone if is_own else read_teacher(setup, "gram_teacher").backbone)
        self.trained: nn.ModuleDict | None = None
        if config.teacher is not None:
            self.trained = nn.ModuleDict(_networks(read_teacher(setup))).requires_grad_(False)
            self.hides_patches = False

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse what DINOv2 refuses, a Gram teacher without weights or of other patches, and a teacher whose heads do
        not fit."""
        super().check(setup)
        config = setup.method
        if config.gram_weight > 0:
            _check_gram_teacher(setup)
        if config.teacher is not None:
            _check_teacher(setup)

    @property
    def given_parts(self) -> dict[str, str]:
        """Return the networks that `gram_teacher` and `teacher` name."""
        parts = {"trained": "teacher"} if self.trained is not None else {}
        if self.gram_teacher is not None and self.config.gram_teacher not in (None, UNTRAINED):
            parts["gram_teacher"] = "gram_teacher"
        return parts

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the views of `Config.views`, each large one with a mask, and those of a Gram teacher."""
        groups = super().views(setup).groups
        if setup.method.gram_weight == 0:
            return ViewRecipe(groups)
        size = setup.method.gram_size or setup.method.views.size
        return ViewRecipe(groups | {"gram": tuple(_plain(view, n, size) for n, view in enumerate(groups["global"]))})

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Let the teacher follow, and the Gram teacher become a copy of it where that is due."""
        super().after_update(step, batch, carry)
        config, then = self.config, step.next()
        if self.gram_teacher is not None and config.gram_updates and config.gram_update_every.is_due(then):
            period = max(1, config.gram_update_every.steps(step.total, step.epoch_len))
            if then.index // period <= config.gram_updates:
                self.gram_teacher.update(self.teacher.module, momentum=0.0)

    def _class_loss(self, scores: Tensor, codes: Tensor) -> Tensor:
        """Return DINO's loss, in which pairs with a small view have a weight of their own."""
        temperature: float = self.config.temperature
        weight: float = self.config.local_weight
        loss: Tensor = dino(scores, codes, temperature)
        num_large, num_views = codes.shape[1], scores.shape[1]
        if weight == 1 or num_large == num_views:
            return loss
        if num_large == 1:  # no pair of large views
            return weight * loss
        # all pairs at the weight of small views, then pairs of large views brought back to weight 1
        large = dino(scores[:, :num_large], codes, temperature)
        share = (num_large - 1) / (num_views - 1)  # of the pairs, those of large views
        return weight * loss + (1 - weight) * share * large

    def _more_of_patches(self, batch: Batch, patches: Tensor, step: Step) -> tuple[Tensor | float, dict[str, Tensor]]:
        """Gram anchoring (section 4.2) of the student's patches [B, G, N, D], masked ones too."""
        if self.gram_teacher is None:
            return 0.0, {"gram": patches.new_zeros(())}
        images = batch.views["gram"].flatten(0, 1)  # [B * G, C, H, W]
        network = cast(TokenBackbone, self.gram_teacher.module)
        with torch.no_grad():
            tokens = network.tokens(images)[:, network.num_prefix_tokens :]  # [B * G, N', E]
            targets = _resized(tokens, network.grid(images), self.backbone.grid(batch.views["global"][:, 0]))
        loss = gram(patches.flatten(0, 1), targets)
        rise = linear_over(step, self.config.gram_warmup, 0.0, 1.0)
        return cosine(rise, 0.0, self.config.gram_weight) * loss, {"gram": loss.detach()}

    def _teachers(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the networks of `Config.teacher`, or those that follow the student."""
        if self.trained is None:
            return super()._teachers()
        return self.trained["backbone"], self.trained["head"], self.trained["patch_head"]


def _plain(view: View, number: int, size: int) -> View:
    """Return what the Gram teacher sees of large view `number`: the same part of the image in its own colours."""
    moves = tuple(t for t in view.transforms if isinstance(t, (HorizontalFlip, VerticalFlip, Affine)))
    return View(replace(view.crop, size=size), moves, repeats=number)


def _resized(tokens: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resize features of patches [n, h*w, E] to another grid bicubically, in at least fp32."""
    if old == new:
        return tokens
    with torch.autocast(tokens.device.type, enabled=False):
        wide = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        maps = wide.view(len(tokens), *old, -1).permute(0, 3, 1, 2)  # [n, E, h, w]
        return F.interpolate(maps, size=new, mode="bicubic", align_corners=False).flatten(2).mT


def _networks(checkpoint: Checkpoint) -> dict[str, nn.Module]:
    """Read the teacher of a run of DINOv2 or DINOv3, and its heads."""
    method: Any = checkpoint.config.method
    with local_copy(newest(checkpoint.uri, [STATE_FILE]), [STATE_FILE]) as folder:
        state: dict[str, Tensor] = load_tensors(folder / STATE_FILE)["method"]
    networks: dict[str, nn.Module] = {"backbone": checkpoint.backbone}
    for name, stored in HEADS.items():
        networks[name] = DINOHead(cast(TokenBackbone, checkpoint.backbone).token_dim, getattr(method, name))
        prefix = f"{stored}.module."
        networks[name].load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
    return networks


def _check_gram_teacher(setup: Setup) -> None:
    """Refuse a Gram teacher at random, one whose patches do not cover its views, and updates of another network."""
    config, backbone = setup.method, setup.config.backbone
    patch_size = patch_side(setup, DINOv3.title)
    if config.gram_teacher is None and config.weights is None and not backbone.is_pretrained:
        raise ConfigError(
            f"method.gram_weight is {config.gram_weight:g}, and the run begins at random: Gram anchoring holds patches "
            "to those of a trained network; give method.weights=RUN, the run of the first stage, or "
            "method.gram_teacher=RUN"
        )
    if config.gram_teacher not in (None, UNTRAINED):
        teacher = read_teacher(setup, "gram_teacher")
        if teacher.backbone.patch_size is None:
            raise ConfigError(f"method.gram_teacher: {teacher.uri} has no patches; give a ViT, such as one of dino_v3")
        if config.gram_updates and teacher.config.backbone != backbone:
            raise ConfigError(
                f"method.gram_updates is {config.gram_updates}: the Gram teacher becomes a copy of the teacher, and "
                f"{teacher.uri} is another network; set method.gram_updates=0"
            )
        patch_size = teacher.backbone.patch_size
    size = config.gram_size or config.views.size
    if rest := size % patch_size:
        key = "gram_size" if config.gram_size else "views.size"
        raise ConfigError(
            f"method.{key} is {size}, which the Gram teacher's patches of {patch_size} do not cover; set "
            f"method.gram_size={size - rest + patch_size}"
        )


def _check_teacher(setup: Setup) -> None:
    """Refuse a teacher of another method, with other prototypes or patches."""
    config, checkpoint = setup.method, read_teacher(setup)
    other_config: Any = checkpoint.config.method
    if not isinstance(other_config, DINOv2.Config) or isinstance(other_config, Franca.Config):
        raise ConfigError(
            f"method.teacher: {checkpoint.uri} is of method={checkpoint.meta['method']}, which has no heads of DINOv3; "
            "give a run of dino_v3 or dino_v2, or use method=distill"
        )
    for name in HEADS:
        ours, other = getattr(config, name).num_prototypes, getattr(other_config, name).num_prototypes
        if ours != other:
            raise ConfigError(
                f"method.{name}.num_prototypes is {ours}, and the teacher's {other}; set "
                f"method.{name}.num_prototypes={other}"
            )
    patch_size, other = patch_side(setup, DINOv3.title), checkpoint.backbone.patch_size
    if patch_size != other:
        raise ConfigError(
            f"backbone.patch_size is {patch_size}, and the teacher's {other}: they compare patches one by one; set "
            f"backbone.patch_size={other}"
        )
