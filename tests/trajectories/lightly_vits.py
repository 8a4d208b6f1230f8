"""Models on patches put together from lightly's parts and timm's vision transformer."""

import warnings
from typing import Any

import torch
from lightly.loss import DINOLoss, IBOTPatchLoss, MSNLoss, PMSNLoss
from lightly.models import utils
from lightly.models.modules.masked_autoencoder_timm import MAEDecoderTIMM
from lightly.models.modules.masked_vision_transformer_timm import MaskedVisionTransformerTIMM
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.schedule import Step
from tests.trajectories.lightly_peers import Peer, cosine_momentum, dino_head, head_like, head_pairs, same
from tests.trajectories.ours import Course

Pairs = list[tuple[str, Tensor, Tensor]]


def masked_vit(ours: Any) -> MaskedVisionTransformerTIMM:
    """Lightly's masked transformer around timm's, with the weights of raysl's."""
    vit = VisionTransformer(
        img_size=ours.config.image_size,
        patch_size=ours.patch_size,
        embed_dim=ours.token_dim,
        depth=len(ours.blocks),
        num_heads=ours.num_heads,
        num_classes=0,
        global_pool="token",
    ).double()
    weights = {name: value for name, value in ours.state_dict().items() if name != "mask_token"}
    vit.load_state_dict(weights)
    vit.pos_embed.requires_grad_(isinstance(ours.pos_embed, nn.Parameter))
    token = torch.zeros(1, 1, ours.token_dim, dtype=torch.float64) if ours.mask_token is None else ours.mask_token
    return MaskedVisionTransformerTIMM(
        vit, nn.Parameter(token.detach().clone()), weight_initialization="skip", pos_embed_initialization="skip"
    ).double()


def vit_pairs(what: str, ours: Any, theirs: MaskedVisionTransformerTIMM) -> Pairs:
    """Of two transformers, by name."""
    found, expected = ours.state_dict(), {**theirs.vit.state_dict(), "mask_token": theirs.mask_token}
    return [(f"{what}.{name}", value, expected[name]) for name, value in found.items()]


def hidden_and_visible(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Places of tokens that are hidden and that are kept [B, M], [B, 1 + K], of masks [B, h, w] that hide equally
    many; place 0 is the class token."""
    flat = mask.flatten(1)
    rows = torch.arange(1, flat.shape[1] + 1).expand(len(flat), -1)
    hidden, kept = rows[flat].view(len(flat), -1), rows[~flat].view(len(flat), -1)
    return hidden, torch.cat([kept.new_zeros(len(flat), 1), kept], dim=1)


class MAE(Peer):
    """Pixels of hidden patches, normalised by lightly's function where raysl's settings normalise them."""

    def __init__(self, course: Course) -> None:
        ours: Any = course.begun
        self.config = course.config
        self.vit = masked_vit(ours.backbone)
        width, heads, depth = self.config.decoder_width, self.config.decoder_heads, self.config.decoder_depth
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lightly renames it in 1.7
            self.decoder = MAEDecoderTIMM(
                num_patches=ours.decoder.positions.shape[1] - 1,
                patch_size=ours.backbone.patch_size,
                embed_dim=ours.backbone.token_dim,
                decoder_embed_dim=width,
                decoder_depth=depth,
                decoder_num_heads=heads,
            ).double()
        for _, own, theirs in self._decoder_pairs(ours):
            theirs.data.copy_(own.view_as(theirs))

    def trained(self) -> list[nn.Parameter]:
        """Encoder and decoder."""
        both = [*self.vit.vit.parameters(), *self.decoder.parameters()]
        return [parameter for parameter in both if parameter.requires_grad]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Squared error."""
        images, patch = batch.views["global"].flatten(0, 1), self.vit.vit.patch_embed.patch_size[0]
        hidden, kept = hidden_and_visible(batch.extras["global.mask"].flatten(0, 1))
        seen = self.decoder.embed(self.vit.encode(images, idx_keep=kept))
        tokens = utils.repeat_token(self.decoder.mask_token, (len(images), self.vit.sequence_length))
        decoded = self.decoder.decode(utils.set_at_index(tokens, kept, seen))
        predicted = self.decoder.predict(utils.get_at_index(decoded, hidden))
        target = utils.get_at_index(utils.patchify(images, patch), hidden - 1)
        if self.config.is_normalised:
            target = utils.normalize_mean_var(target)
        return F.mse_loss(predicted, target)

    def pairs(self, ended: Method) -> Pairs:
        """Of both."""
        method: Any = ended
        return [*vit_pairs("backbone", method.backbone, self.vit), *self._decoder_pairs(method)]

    def _decoder_pairs(self, method: Any) -> Pairs:
        ours, theirs = method.decoder, self.decoder
        parts = ("embed", "blocks", "norm", "pixels")
        others = (theirs.decoder_embed, theirs.decoder_blocks, theirs.decoder_norm, theirs.decoder_pred)
        pairs = [
            pair for name, part in zip(parts, others, strict=True) for pair in same(name, getattr(ours, name), part)
        ]
        token = theirs.mask_token.view(ours.mask_token.shape)
        return [*pairs, ("mask_token", ours.mask_token, token), ("positions", ours.positions, theirs.decoder_pos_embed)]


class SimMIM(Peer):
    """Absolute error of hidden pixels from one linear layer."""

    def __init__(self, course: Course) -> None:
        ours: Any = course.begun
        self.vit = masked_vit(ours.backbone)
        self.head = nn.Linear(ours.head.in_features, ours.head.out_features).double()
        self.head.load_state_dict(ours.head.state_dict())

    def trained(self) -> list[nn.Parameter]:
        """Both."""
        parameters = [*self.vit.parameters(), *self.head.parameters()]
        return [parameter for parameter in parameters if parameter.requires_grad]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of hidden patches."""
        images, patch = batch.views["global"].flatten(0, 1), self.vit.vit.patch_embed.patch_size[0]
        hidden, _ = hidden_and_visible(batch.extras["global.mask"].flatten(0, 1))
        tokens = self.vit.encode(images, idx_mask=hidden)
        target = utils.get_at_index(utils.patchify(images, patch), hidden - 1)
        return F.l1_loss(self.head(utils.get_at_index(tokens, hidden)), target)

    def pairs(self, ended: Method) -> Pairs:
        """Of both."""
        method: Any = ended
        return [*vit_pairs("backbone", method.backbone, self.vit), *same("head", method.head, self.head)]


class MSN(Peer):
    """One masked anchor a target, without small views."""

    def criterion_of(self) -> MSNLoss:
        """The loss with the run's settings."""
        return MSNLoss(self.config.temperature, self.config.sinkhorn_iters, self.config.entropy_weight)

    def __init__(self, course: Course) -> None:
        ours: Any = course.begun
        self.config = course.config
        self.vit, self.teacher = masked_vit(ours.backbone), masked_vit(ours.backbone)
        self.projector, self.teacher_projector = head_like(ours.projector), head_like(ours.projector)
        self.prototypes = nn.Parameter(ours.prototypes.detach().clone())
        for module in (self.teacher, self.teacher_projector):
            utils.deactivate_requires_grad(module)
        self.criterion = self.criterion_of()

    def trained(self) -> list[nn.Parameter]:
        """Student and prototypes."""
        parameters = [*self.vit.vit.parameters(), *self.projector.parameters(), self.prototypes]
        return [parameter for parameter in parameters if parameter.requires_grad]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of the second view against the first."""
        target, anchor = batch.views["global"].unbind(1)
        _, kept = hidden_and_visible(batch.extras["global.mask"][:, 1])
        anchors = self.projector(self.vit(anchor, idx_keep=kept))
        with torch.no_grad():
            targets = self.teacher_projector(self.teacher(target))
        return self.criterion(  # type: ignore[no-any-return]
            anchors, targets, self.prototypes, target_sharpen_temperature=self.config.sharpening
        )

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows along a straight line."""
        begin, end = self.config.momentum, self.config.momentum_end
        momentum = begin + (end - begin) * step.progress
        utils.update_momentum(self.vit, self.teacher, momentum)
        utils.update_momentum(self.projector, self.teacher_projector, momentum)

    def pairs(self, ended: Method) -> Pairs:
        """Of student, teacher and prototypes."""
        method: Any = ended
        return [
            *vit_pairs("backbone", method.backbone, self.vit),
            *vit_pairs("teacher", method.teacher.module, self.teacher),
            *same("projector", method.projector, self.projector.layers),
            *same("teacher_projector", method.teacher_projector.module, self.teacher_projector.layers),
            ("prototypes", method.prototypes, self.prototypes),
        ]


class PMSN(MSN):
    """Lightly diverges from the mean prediction to its prior, the paper from the prior to the mean prediction."""

    def criterion_of(self) -> MSNLoss:
        """Lightly's, with the two sides of the divergence exchanged."""
        exponent = self.config.prior_exponent

        class Exchanged(PMSNLoss):
            def regularization_loss(self, mean_anchor_probs: Tensor) -> Tensor:
                """Of the prior, against the mean prediction as target."""
                prior = torch.arange(1, len(mean_anchor_probs) + 1, dtype=torch.float64) ** -exponent
                return F.kl_div((prior / prior.sum()).log(), mean_anchor_probs, reduction="sum")

        return Exchanged(self.config.temperature, self.config.sinkhorn_iters, self.config.entropy_weight, exponent)


class IBOT(Peer):
    """Two large views. Lightly's centre of patches follows the hidden ones, the authors' follows all: lightly's loss is
    given the centre of all."""

    def __init__(self, course: Course) -> None:
        ours: Any = course.begun
        config = self.config = course.config
        self.vit, self.teacher = masked_vit(ours.backbone), masked_vit(ours.backbone)
        self.heads = [dino_head(config.head, own) for own in (ours.head, ours.patch_head)]
        self.teacher_heads = [dino_head(config.head, own) for own in (ours.head, ours.patch_head)]
        for module in (self.teacher, *self.teacher_heads):
            utils.deactivate_requires_grad(module)
        num, temperature = config.head.num_prototypes, config.temperature
        self.criterion = DINOLoss(num, student_temp=temperature, center_momentum=config.centre_momentum).double()
        self.patches = IBOTPatchLoss(num, student_temp=temperature, center_momentum=0.0).double()
        self.patch_centre = torch.zeros(1, num, dtype=torch.float64)

    def trained(self) -> list[nn.Parameter]:
        """The student."""
        parameters = [parameter for module in (self.vit, *self.heads) for parameter in module.parameters()]
        return [parameter for parameter in parameters if parameter.requires_grad]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of class tokens and hidden patches."""
        images = batch.views["global"].transpose(0, 1).flatten(0, 1)  # [V*B, C, H, W]
        mask = batch.extras["global.mask"].transpose(0, 1).flatten(0, 1)  # [V*B, h, w]
        all_places = F.pad(mask.flatten(1), (1, 0))
        features = self.vit.encode(images, mask=all_places)
        scores, patch_scores = self.heads[0](features[:, 0]), self.heads[1](features[all_places])
        with torch.no_grad():
            told = self.teacher.encode(images)
            told_scores = self.teacher_heads[0](told[:, 0])
            told_patches = self.teacher_heads[1](told[:, 1:].flatten(0, 1))  # [V*B*N, K]
        config, share = self.config, self.config.patch_centre_momentum
        class_loss = self.criterion(list(told_scores.chunk(2)), list(scores.chunk(2)), teacher_temp=config.teacher_temp)
        self.patches.center.center = self.patch_centre
        self.patch_centre = share * self.patch_centre + (1 - share) * told_patches.mean(dim=0)
        patch_loss = self.patches(
            told_patches[mask.flatten()], patch_scores, mask, teacher_temp=config.patch_teacher_temp
        )
        return config.class_weight * class_loss + config.patch_weight * patch_loss  # type: ignore[no-any-return]

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes in the first epoch."""
        for head in self.heads:
            head.cancel_last_layer_gradients(step.epoch)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        momentum = cosine_momentum(step, self.config.momentum, self.config.momentum_end)
        for student, teacher in zip((self.vit, *self.heads), (self.teacher, *self.teacher_heads), strict=True):
            utils.update_momentum(student, teacher, momentum)

    def pairs(self, ended: Method) -> Pairs:
        """Of student, teacher and centres."""
        method: Any = ended
        return [
            *vit_pairs("backbone", method.backbone, self.vit),
            *vit_pairs("teacher", method.teacher.module, self.teacher),
            *head_pairs("head", method.head, self.heads[0]),
            *head_pairs("patch_head", method.patch_head, self.heads[1]),
            *head_pairs("teacher_head", method.teacher_head.module, self.teacher_heads[0]),
            ("centre", method.centre.value, self.criterion.center.flatten()),
            ("patch_centre", method.patch_centre.value, self.patch_centre.flatten()),
        ]


VIT_PEERS = {
    "mae": (MAE, ()),
    "mae-plain": (MAE, ("method.is_normalised=false",)),
    "simmim": (SimMIM, ()),
    "msn": (MSN, ("method.views.num_local=0",)),
    "pmsn": (PMSN, ("method.views.num_local=0",)),
    "pmsn-balanced": (PMSN, ("method.views.num_local=0", "method.sinkhorn_iters=3", "method.prior_exponent=1")),
    "ibot": (
        IBOT,
        (
            "method.views.num_local=0",
            "method.head.norm=false",
        ),
    ),
}
"""As `PEERS` of convolutional networks."""
