"""lightly's losses, heads, transforms and schedules in a plain loop, as its examples put them together."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from perf.peers.task import Clock, Features, Task, frozen, schedule
from perf.pictures import EncodedImages
from raysl.nn.backbones.vit import SIZES

Views = Sequence[Tensor]
"""Normalised views of a batch, [B, 3, 32, 32] each."""


@dataclass
class Model:
    """A method put together."""

    loss: Callable[[Views], Tensor]
    trained: list[nn.Module]  # whose parameters the optimizer updates
    exported: Features  # that are measured
    followers: list[tuple[nn.Module, nn.Module]] = field(default_factory=list)  # students and their teachers
    momentum: float = 0.0  # share of a teacher that an update keeps
    after_backward: Callable[[int], None] = lambda epoch: None  # between gradients and update, with the epoch


def endless_batches(task: Task, transform: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield shuffled batches of views, made in this process, again and again."""
    images, _ = task.encoded("train", task.images)
    order = torch.Generator().manual_seed(task.seed)
    batches = DataLoader(
        EncodedImages(images, transform), batch_size=task.batch_size, shuffle=True, drop_last=True, generator=order
    )
    while True:
        yield from batches


def optimizer_of(task: Task, modules: Sequence[nn.Module]) -> torch.optim.Optimizer:
    """Return torch's optimizer with raysl's settings; biases and normalisation decay where raysl's do."""
    from lightly.models.utils import get_weight_decay_parameters

    config: Any = task.config.optim
    has_all = not config.exclude_norm_and_bias
    decayed, others = get_weight_decay_parameters(modules, decay_norm=has_all, decay_bias=has_all)
    groups = [
        {"params": [p for p in some if p.requires_grad], "weight_decay": decay}
        for some, decay in ((decayed, config.weight_decay), (others, 0.0))
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=tuple(config.betas))


def train(task: Task) -> tuple[Features, dict[str, float]]:
    """Train, and return the features of the exported backbone and the seconds of the loop."""
    from lightly.models.utils import update_momentum

    torch.manual_seed(task.seed)
    model = MODELS[task.method](task)
    optimizer = optimizer_of(task, model.trained)
    batches = endless_batches(task, transform_of(task))
    for module in (*model.trained, *(teacher for _, teacher in model.followers)):
        module.train()
    clock = Clock(task)
    for index in schedule(task, optimizer, clock):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(next(batches)))
        model.after_backward(index // task.plan.epoch_len)
        optimizer.step()
        for student, teacher in model.followers:
            update_momentum(student, teacher, model.momentum)
    return model.exported, clock.stop()


def transform_of(task: Task) -> Callable[[Any], Any]:
    """Return lightly's transform of a PIL image to a list of views."""
    from lightly.transforms import MAETransform
    from lightly.transforms.multi_view_transform import MultiViewTransform
    from lightly.transforms.simclr_transform import SimCLRViewTransform

    views: Any = task.config.method.views  # type: ignore[attr-defined]
    normalize = {"mean": list(task.config.data.mean), "std": list(task.config.data.std)}
    if task.method == "mae":
        return MAETransform(views.size, views.min_scale, normalize)  # type: ignore[no-any-return]
    brightness, contrast, saturation, hue = views.jitter
    view = SimCLRViewTransform(
        input_size=views.size,
        cj_prob=views.jitter_p,
        cj_strength=views.jitter_strength,
        cj_bright=brightness,
        cj_contrast=contrast,
        cj_sat=saturation,
        cj_hue=hue,
        min_scale=views.min_scale,
        random_gray_scale=views.grayscale_p,
        gaussian_blur=views.blur_p,
        hf_prob=views.flip,
        normalize=normalize,
    )
    return MultiViewTransform([view] * views.num)  # type: ignore[no-any-return]


def of_two_views(
    task: Task, head_of: Callable[[int], nn.Module], criterion: Callable[[Tensor, Tensor], Tensor], scale: float = 1.0
) -> Model:
    """Return a method whose loss compares the embeddings of two views; the head is made for a width of features."""
    net = task.resnet()
    head = head_of(net.feature_dim)
    return Model(lambda v: scale * criterion(head(net(v[0])), head(net(v[1]))), [net, head], frozen_later(net))


def simclr(task: Task) -> Model:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    config: Any = task.config.method
    sizes, criterion = (config.hidden_dim, config.output_dim), NTXentLoss(config.temperature)
    return of_two_views(task, lambda width: SimCLRProjectionHead(width, *sizes), criterion)


def barlow_twins(task: Task) -> Model:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    config: Any = task.config.method
    sizes, criterion = (config.dim, config.dim), BarlowTwinsLoss(config.redundancy)
    return of_two_views(task, lambda width: BarlowTwinsProjectionHead(width, *sizes), criterion, config.scale)


def vicreg(task: Task) -> Model:
    from lightly.loss import VICRegLoss
    from lightly.models.modules.heads import VICRegProjectionHead

    config: Any = task.config.method
    # lightly's variance is half the sum of both views'
    criterion = VICRegLoss(config.invariance, 2 * config.variance, config.covariance)
    return of_two_views(task, lambda width: VICRegProjectionHead(width, config.dim, config.dim), criterion)


def moco(task: Task) -> Model:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.models.utils import batch_shuffle, batch_unshuffle

    config: Any = task.config.method
    net = task.resnet()
    head = MoCoProjectionHead(net.feature_dim, config.hidden_dims[0], config.output_dim)
    key_net, key_head = teachers(net, head)
    criterion = NTXentLoss(config.temperature, memory_bank_size=(config.queue_size, config.output_dim))

    def loss(views: Views) -> Tensor:
        with torch.no_grad():
            keys, order = batch_shuffle(views[1])
            keys = batch_unshuffle(key_head(key_net(keys)), order)
        return criterion(head(net(views[0])), keys)  # type: ignore[no-any-return]

    followers = [(net, key_net), (head, key_head)]
    return Model(loss, [net, head], frozen_later(net), followers, config.momentum)


def byol(task: Task) -> Model:
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead

    config: Any = task.config.method
    net = task.resnet()
    head = BYOLProjectionHead(net.feature_dim, config.hidden_dim, config.output_dim)
    predictor = BYOLPredictionHead(config.output_dim, config.hidden_dim, config.output_dim)
    target_net, target_head = teachers(net, head)
    criterion = NegativeCosineSimilarity()

    def loss(views: Views) -> Tensor:
        first, second = (predictor(head(net(view))) for view in views)
        with torch.no_grad():
            to_first, to_second = (target_head(target_net(view)) for view in views)
        both: Tensor = criterion(first, to_second) + criterion(second, to_first)
        return 2 * both  # the paper's factor

    followers = [(net, target_net), (head, target_head)]
    return Model(loss, [net, head, predictor], frozen_later(net), followers, config.momentum)


def swav(task: Task) -> Model:
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes

    config: Any = task.config.method
    net = task.resnet()
    head = SwaVProjectionHead(net.feature_dim, config.hidden_dim, config.output_dim)
    held = config.freeze_prototypes.steps(task.plan.total_steps, task.plan.epoch_len)
    prototypes = SwaVPrototypes(config.output_dim, config.prototypes[0], n_steps_frozen_prototypes=held)
    criterion = SwaVLoss(config.temperature, config.sinkhorn_iters, config.epsilon)
    steps = iter(range(task.plan.total_steps))

    def loss(views: Views) -> Tensor:
        step = next(steps)
        prototypes.normalize()
        scores = [prototypes(nn.functional.normalize(head(net(view)), dim=1), step) for view in views]
        return criterion(scores, [])  # type: ignore[no-any-return]

    return Model(loss, [net, head, prototypes], frozen_later(net))


def dino(task: Task) -> Model:
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead

    config: Any = task.config.method
    sizes, net = config.head, task.resnet()
    head, teacher_head = (
        DINOProjectionHead(
            net.feature_dim, sizes.hidden_dim, sizes.bottleneck_dim, sizes.num_prototypes, batch_norm=sizes.norm,
            freeze_last_layer=1, norm_last_layer=sizes.last_layer == "unit",
        )
        for _ in range(2)
    )  # fmt: skip
    teacher_head.load_state_dict(head.state_dict())
    teacher_head.requires_grad_(False)
    (teacher_net,) = teachers(net)
    criterion = DINOLoss(
        sizes.num_prototypes, config.teacher_temp_start, config.teacher_temp,
        int(config.teacher_temp_warmup.value), config.temperature, config.centre_momentum,
    )  # fmt: skip

    def loss(views: Views) -> Tensor:
        with torch.no_grad():
            targets = [teacher_head(teacher_net(view)) for view in views]
        return criterion(targets, [head(net(view)) for view in views], teacher_temp=config.teacher_temp)  # type: ignore[no-any-return]

    followers = [(net, teacher_net), (head, teacher_head)]
    return Model(
        loss, [net, head], frozen_later(teacher_net), followers, config.momentum, head.cancel_last_layer_gradients
    )


def lejepa(task: Task) -> Model:
    from lightly.loss.lejepa_loss import LeJEPALoss, lejepa_invariance_loss
    from lightly.models.modules.heads import LeJEPAProjectionHead

    config: Any = task.config.method
    net = task.resnet()
    head = LeJEPAProjectionHead(net.feature_dim, config.hidden_dim, config.output_dim)
    criterion = LeJEPALoss(
        config.sigreg, sigreg_knots=config.num_points, sigreg_t_max=config.max_t, sigreg_num_vectors=config.num_slices
    )

    def loss(views: Views) -> Tensor:
        # Its two terms; its whole loss takes large views only beside small ones.
        z = torch.stack([head(net(view)) for view in views])
        weight, agreement = criterion.lambda_param, lejepa_invariance_loss(all_proj=z, global_proj=z)
        return weight * criterion.sigreg(z) + (1 - weight) * agreement  # type: ignore[no-any-return]

    return Model(loss, [net, head], frozen_later(net))


def mae(task: Task) -> Model:
    from lightly.models import utils
    from lightly.models.modules.masked_autoencoder_timm import MAEDecoderTIMM
    from lightly.models.modules.masked_vision_transformer_timm import MaskedVisionTransformerTIMM

    config: Any = task.config.method
    vit = MaskedVisionTransformerTIMM(timm_vit(task))
    patch, length = vit.vit.patch_embed.patch_size[0], vit.sequence_length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lightly renames it in 1.7
        decoder = MAEDecoderTIMM(
            num_patches=length - 1, patch_size=patch, embed_dim=vit.vit.embed_dim,
            decoder_embed_dim=config.decoder_width, decoder_depth=config.decoder_depth,
            decoder_num_heads=config.decoder_heads,
        )  # fmt: skip

    def loss(views: Views) -> Tensor:
        images = views[0]
        kept, hidden = utils.random_token_mask((len(images), length), config.mask_ratio, device=images.device)
        seen = decoder.embed(vit.encode(images=images, idx_keep=kept))
        tokens = utils.set_at_index(utils.repeat_token(decoder.mask_token, (len(images), length)), kept, seen)
        predicted = decoder.predict(utils.get_at_index(decoder.decode(tokens), hidden))
        target = utils.get_at_index(utils.patchify(images, patch), hidden - 1)
        return nn.functional.mse_loss(predicted, utils.normalize_mean_var(target))

    return Model(loss, [vit, decoder], lambda images: vit.eval().encode(images)[:, 1:].mean(dim=1))


def timm_vit(task: Task) -> nn.Module:
    """Return timm's ViT of the size of raysl's."""
    from timm.models.vision_transformer import VisionTransformer

    config: Any = task.config.backbone
    width, depth, heads = SIZES[config.size]
    vit: nn.Module = VisionTransformer(
        img_size=config.image_size, patch_size=config.patch_size, embed_dim=width, depth=depth, num_heads=heads,
        num_classes=0, global_pool="token",
    )  # fmt: skip
    return vit


def teachers(*students: nn.Module) -> list[nn.Module]:
    """Return copies without gradients."""
    return [copy.deepcopy(student).requires_grad_(False) for student in students]


def frozen_later(network: nn.Module) -> Features:
    """Return a network's features as they are in evaluation, after training."""
    return lambda images: frozen(network)(images)


MODELS: dict[str, Callable[[Task], Model]] = {
    model.__name__: model for model in (simclr, moco, byol, barlow_twins, vicreg, swav, dino, mae, lejepa)
}
"""Methods by raysl's names."""
