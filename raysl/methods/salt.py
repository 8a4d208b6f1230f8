"""SALT: Rethinking JEPA, Compute-Efficient Video SSL with Frozen Teachers.

Li, Huang, Li, Malach, Susskind, Thilak and Littwin 2025, arXiv 2509.24317, for images: static-teacher asymmetric latent
training. In a first run, a teacher learns to predict the pixels of hidden blocks. In a second one it is frozen, and a
student, of any size, learns to predict what the teacher says of hidden blocks. There is no moving average.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from raysl.config.ranges import Areas, Count, Factors, Location, Place, Within
from raysl.losses import masked_patch_l1, masked_patch_mse, patchify
from raysl.methods.ijepa import Predictor
from raysl.methods.method import Batch, ConfigError, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.patches import PatchMethod, check_context, check_width, multi_block_mask, token_backbone
from raysl.methods.shared.reconstruction import Reconstruction, patch_reconstruction, placed
from raysl.methods.shared.teacher_networks import UNTRAINED, read_teacher
from raysl.nn.backbones.backbone import Backbone, TokenBackbone, visible_places
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import Crops, MultiBlockMask


class SALT(PatchMethod):
    """Predicts a frozen teacher's patches in hidden blocks, or, to make a teacher, their pixels.

    The teacher's weights are part of every checkpoint. Its run or checkpoint is still needed, for the shape of its
    network.
    """

    logged = COLLAPSE

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The paper's two stages, with blocks and predictor for images as stable-pretraining has them."""

        name: str = "salt"
        target: Literal["latents", "pixels"] = "latents"
        """What is predicted of hidden patches: the teacher's output, or, in the run that makes the teacher, their
        pixels (abstract)."""
        teacher: Location | None = None
        """Run or checkpoint of raysl, a path or a URI, whose ViT teaches; one of any size with the same patches. The
        word `untrained` takes a random network like the student."""
        is_normalised: bool = True
        """Predict pixels minus their patch's mean, divided by its standard deviation, as MAE does."""
        num_targets: Annotated[int, Within(1, 64)] = 4
        """Number of hidden blocks, which are predicted together (stable-pretraining, as in I-JEPA)."""
        target_scale: Areas = (0.15, 0.2)
        """Range of the share of the patches in a block (stable-pretraining, as in I-JEPA)."""
        target_aspect: Factors = (0.75, 1.5)
        """Range of height / width of a block (stable-pretraining, as in I-JEPA)."""
        context_scale: Areas = (0.85, 1.0)
        """Range of the share of the patches that the student sees, before the blocks are removed (stable-pretraining,
        as in I-JEPA)."""
        min_context: Place = 10
        """Smallest number of patches that the student sees; with fewer, all blocks are drawn again, as in I-JEPA."""
        max_context: Count | None = None
        """Largest number of patches that the student sees, the first ones row by row. Default: no limit."""
        predictor_width: Annotated[int, Within(4, 65_536)] = 384
        """Channels of a token in the predictor, a multiple of 4 and of its heads (stable-pretraining)."""
        predictor_depth: Annotated[int, Within(1, 1000)] = 12
        """Blocks of the predictor (stable-pretraining)."""
        predictor_heads: Annotated[int, Within(1, 1024)] = 16
        """Heads of each attention in the predictor (stable-pretraining)."""
        views: Crops = field(
            default_factory=lambda: Crops(num=1, min_scale=0.3, flip=0.0, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0)
        )
        """One crop and nothing else, as in I-JEPA."""

        def is_place(self, field: str, text: str) -> bool:
            return field != "teacher" or text != UNTRAINED

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, size = self.config, self.config.views.size
        self.num_context, most = multi_block_mask(setup, "SALT").most((size, size))
        self.num_hidden = min(most * config.num_targets, (size // self.backbone.patch_size) ** 2)
        self.teacher: TokenBackbone | None = None
        num_values = self.backbone.in_channels * self.backbone.patch_size**2
        if config.target == "latents":
            is_random = config.teacher == UNTRAINED
            network = type(backbone)(backbone.config) if is_random else read_teacher(setup).backbone
            self.teacher = token_backbone(network).requires_grad_(False)
            num_values = self.teacher.token_dim
        self.predictor = Predictor(config, self.backbone, num_values)

    @property
    def given_parts(self) -> dict[str, str]:
        """Return the teacher, unless there is none or a random one."""
        return {} if self.config.teacher in (None, UNTRAINED) else {"teacher": "teacher"}

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse backbones without patches, views too small for a context, impossible predictors, and a missing teacher
        or one with other patches."""
        config = setup.method
        check_context(setup, "SALT")
        check_width("predictor", config.predictor_width, config.predictor_heads)
        if (config.target == "latents") == (config.teacher is None):
            problem = "is not given" if config.teacher is None else f"is {config.teacher}, and pixels need none"
            raise ConfigError(
                f"method.teacher {problem}; SALT has two runs: first method.target=pixels name=salt_teacher, then "
                "method.teacher=runs/salt_teacher"
            )
        if config.teacher in (None, UNTRAINED):
            return
        patch_size = read_teacher(setup).backbone.patch_size
        if patch_size != setup.backbone.patch_size:
            raise ConfigError(
                f"method.teacher has {f'patches of {patch_size}' if patch_size else 'no patches'}, and the student "
                f"patches of {setup.backbone.patch_size} pixels; they are compared patch by patch: give a ViT "
                "with the same ones"
            )

    @classmethod
    def mask(cls, setup: Setup) -> MultiBlockMask:
        """Return the hidden blocks of each view."""
        return multi_block_mask(setup, "SALT")

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean absolute error of the teacher's hidden patches, or the squared error of pixels."""
        images = batch.views["global"].flatten(0, 1)  # [B*V, C, H, W]
        unseen = batch.extras["global.mask"].flatten(0, 1).flatten(1)  # [B*V, L]
        # the union of the target blocks, since they are predicted together
        hidden = batch.extras["global.targets"].flatten(0, 1).flatten(2).any(dim=1)  # [B*V, L]
        context, is_seen, p, masked, is_hidden = self._predict(images, unseen, hidden)
        targets = self._targets(images).gather(1, masked[:, :, None].expand(-1, -1, p.shape[2]))  # [B*V, T, E]
        if self.config.target == "latents":
            loss = masked_patch_l1(p, targets, is_hidden)
        else:
            loss = masked_patch_mse(p, targets, is_hidden, self.config.is_normalised)
        weights = is_seen[:, :, None].to(context.dtype)
        h = (context.detach() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)  # [B*V, D]
        return StepOutput(loss, batch_collapse(h.view(len(batch), -1, h.shape[1])))

    def reconstruct(self, batch: Batch) -> Reconstruction | None:
        """Return the predictions of hidden blocks among the patches of the context; None of latents."""
        if self.config.target == "latents":
            return None
        images, unseen = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0].flatten(1)
        hidden = batch.extras["global.targets"][:, 0].flatten(2).any(dim=1)
        _, _, p, masked, _ = self._predict(images, unseen, hidden)
        predictions, _ = placed(p, masked, hidden.shape[1])
        # behind an image's hidden patches `masked` lists others, whose predictions mean nothing
        shape = self.backbone.patch_size, self.config.is_normalised
        return patch_reconstruction(images, unseen, predictions, *shape, is_predicted=hidden)

    def _predict(self, images: Tensor, unseen: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return the context's patches [N, K, D], which of them are seen [N, K], the predictions [N, T, E], the indices
        of their patches and which of these are hidden [N, T] each."""
        keep, masked = visible_places(unseen, self.num_context), visible_places(~hidden, self.num_hidden)
        is_seen, is_hidden = ~unseen.gather(1, keep), hidden.gather(1, masked)  # [N, K], [N, T]
        context = self.backbone.visible_tokens(images, keep, is_seen)[:, self.backbone.num_prefix_tokens :]
        p = self.predictor(context, keep, is_seen, masked[:, None], is_hidden[:, None])[:, 0]  # [N, T, E]
        return context, is_seen, p, masked, is_hidden

    @torch.no_grad()
    def _targets(self, images: Tensor) -> Tensor:
        """Return the teacher's patches of whole images, or the pixels of all patches [B*V, L, E]."""
        if self.teacher is None:
            return patchify(images, self.backbone.patch_size)
        self.teacher.eval()  # whatever the method is
        return self.teacher.tokens(images)[:, self.teacher.num_prefix_tokens :]
