"""stable-pretraining's method modules and transforms in a plain loop, without the time that Lightning takes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from perf.peers.by_lightly import endless_batches, optimizer_of, timm_vit
from perf.peers.task import Clock, Features, Task, frozen, schedule


def train(task: Task) -> tuple[Features, dict[str, float]]:
    """Train, and return the features of the exported backbone and the seconds of the loop."""
    torch.manual_seed(task.seed)
    model, loss, exported = MODELS[task.method](task)
    optimizer = optimizer_of(task, [model])
    batches = endless_batches(task, transform_of(task))
    followers: list[Any] = [module for module in model.modules() if hasattr(module, "update_teacher")]
    model.train()
    clock = Clock(task)
    for _ in schedule(task, optimizer, clock):
        optimizer.zero_grad()
        torch.autograd.backward(loss([view["image"] for view in next(batches)["views"]]))
        optimizer.step()
        for follower in followers:
            follower.update_teacher()
    return exported, clock.stop()


def transform_of(task: Task) -> Callable[[Any], Any]:
    """Return its transform of a PIL image to `{"views": [{"image": float32 [3, 32, 32]}, ...]}`."""
    from stable_pretraining.data import transforms
    from torchvision.transforms import InterpolationMode

    views: Any = task.config.method.views  # type: ignore[attr-defined]
    scale = (views.min_scale, 1.0)

    def view() -> Any:
        colours = []
        if task.method != "mae":
            colours = [
                transforms.ColorJitter(*(views.jitter_strength * amount for amount in views.jitter), p=views.jitter_p),
                transforms.RandomGrayscale(p=views.grayscale_p),
            ]
        return transforms.Compose(
            transforms.RandomResizedCrop(
                (views.size, views.size), scale=scale, interpolation=InterpolationMode(views.interpolation)
            ),
            transforms.RandomHorizontalFlip(p=views.flip),
            *colours,
            transforms.ToImage(mean=list(task.config.data.mean), std=list(task.config.data.std)),
        )

    transform = transforms.MultiViewTransform([view() for _ in range(views.num)])
    return lambda image: transform({"image": image})


Built = tuple[nn.Module, Callable[[Sequence[Tensor]], Tensor], Features]
"""A module, its loss of the views of a batch, and the features that are measured."""
SCALES = {"byol": 2.0}
"""Factors of its losses that make them those of the papers: it halves the sum of BYOL's two directions."""


def two_views(name: str, **settings: Callable[[Any], Any]) -> Callable[[Task], Built]:
    """Return what builds a method that takes two views, with settings computed from raysl's."""

    def build(task: Task) -> Built:
        from stable_pretraining import methods

        net = task.resnet()
        model = getattr(methods, name)(net, **{key: value(task.config.method) for key, value in settings.items()})
        exported = getattr(model.backbone, "student", model.backbone)
        scale = getattr(task.config.method, "scale", SCALES.get(task.method, 1.0))
        return model, lambda views: scale * model(*views).loss, lambda images: frozen(exported)(images)

    return build


def dino(task: Task) -> Built:
    from stable_pretraining.methods import DINO

    config: Any = task.config.method
    model = DINO(
        task.resnet(), config.head.hidden_dim, config.head.bottleneck_dim, config.head.num_prototypes,
        config.temperature, config.teacher_temp_start, config.teacher_temp, 0, config.centre_momentum,
        config.momentum, config.momentum_end,
    )  # fmt: skip
    return model, lambda views: model(global_views=views).loss, lambda images: frozen(model.backbone.teacher)(images)


def lejepa(task: Task) -> Built:
    from stable_pretraining.methods import LeJEPA

    config: Any = task.config.method
    net = task.resnet()
    layers: list[nn.Module] = []
    width = net.feature_dim
    for hidden in (config.hidden_dim, config.hidden_dim):
        layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
        width = hidden
    head = nn.Sequential(*layers, nn.Linear(width, config.output_dim))
    # Its weight is a factor of one term, raysl's shares one between both.
    weight = config.sigreg / (1 - config.sigreg)
    model = LeJEPA("vit_tiny_patch16_224", head, config.num_slices, config.max_t, config.num_points, weight)
    model.backbone = net

    def loss(views: Sequence[Tensor]) -> Tensor:
        z = model.projector(model.backbone(torch.cat(list(views)))).unflatten(0, (len(views), -1))
        total: Tensor = model._compute_loss(z, len(views), model.sigreg, model.lamb)[0]
        return total

    return model, loss, lambda images: frozen(net)(images)


def mae(task: Task) -> Built:
    from stable_pretraining.methods import MAE

    config: Any = task.config.method
    model = MAE(timm_vit(task), config.decoder_width, config.decoder_depth, config.decoder_heads, config.mask_ratio)

    def features(images: Tensor) -> Tensor:
        tokens: Tensor = model.eval().encoder(images).encoded
        return tokens[:, model.encoder.num_prefix_tokens :].mean(dim=1)

    return model, lambda views: model(views[0]).loss, features


MODELS: dict[str, Callable[[Task], Built]] = {
    "simclr": two_views(
        "SimCLR", projector_dims=lambda c: (c.hidden_dim, c.output_dim), temperature=lambda c: c.temperature
    ),
    "moco": two_views(
        "MoCov2",
        projector_dims=lambda c: (*c.hidden_dims, c.output_dim),
        queue_length=lambda c: c.queue_size,
        temperature=lambda c: c.temperature,
        ema_decay_start=lambda c: c.momentum,
        ema_decay_end=lambda c: c.momentum,
    ),
    "byol": two_views(
        "BYOL",
        projector_dims=lambda c: (c.hidden_dim, c.output_dim),
        predictor_dims=lambda c: (c.hidden_dim, c.output_dim),
        ema_decay_start=lambda c: c.momentum,
        ema_decay_end=lambda c: c.final_momentum,
    ),
    "barlow_twins": two_views("BarlowTwins", projector_dims=lambda c: (c.dim,) * 3, lambd=lambda c: c.redundancy),
    "vicreg": two_views(
        "VICReg",
        projector_dims=lambda c: (c.dim,) * 3,
        sim_coeff=lambda c: c.invariance,
        std_coeff=lambda c: 2 * c.variance,  # it halves each view's
        cov_coeff=lambda c: c.covariance,
    ),
    "swav": two_views(
        "SwAV",
        projector_dims=lambda c: (c.hidden_dim, c.output_dim),
        n_prototypes=lambda c: c.prototypes[0],
        temperature=lambda c: c.temperature,
        sinkhorn_iterations=lambda c: c.sinkhorn_iters,
        epsilon=lambda c: c.epsilon,
    ),
    "dino": dino,
    "mae": mae,
    "lejepa": lejepa,
}
"""Methods by raysl's names."""
