"""Distill: Distilling the Knowledge in a Neural Network.

Hinton, Vinyals and Dean 2015, arXiv 1503.02531. A trained, frozen network teaches another one: its class scores at a
high temperature, or its features, as the hints of Romero et al. 2014 (FitNets, arXiv 1412.6550), which need no classes.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.files import STATE_FILE, local_copy, newest
from raysl.checkpoint.tensors import load_tensors
from raysl.components import resolve
from raysl.config.ranges import Location, Share, Side, Temperature, Width
from raysl.config.schema import MethodConfig
from raysl.config.sizes import find_size_setting
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32, one_hot, soft_cross_entropy
from raysl.methods.method import Method, StepOutput
from raysl.methods.teachers import LIBRARIES, ImagesOf, library_config, read_published, read_teacher
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.maps import features_and_map, last_map
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.nn.heads import mlp
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.recipes import Crops

UNTRAINED = "untrained"
"""Name of a random teacher: a network like the student with other random weights."""


class Distill(Method):
    """Trains a student, the backbone, on the scores or features of a teacher.

    The teacher's weights are part of every checkpoint: a resumed run keeps those that it started with, even if the
    teacher's run has newer ones. The teacher's checkpoint is still needed, for the shape of its network.
    """

    logged = ("agreement", *COLLAPSE)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """raysl's settings; the paper has different ones for each of its tasks."""

        name: str = "distill"
        teacher: Location | None = None
        """Run or checkpoint of raysl, a path or a URI, whose backbone teaches; or a published network, as
        `timm:vit_small_patch14_dinov2.lvd142m` or `torchvision:resnet50`. The word `untrained` takes a random network
        like the student: from its features of other views a student learns what views have in common (Grill et al.
        2020, arXiv 2006.07733, section 2)."""
        target: Literal["labels", "features", "tokens"] = "labels"
        """What the student learns: the class scores of a teacher of method=supervised, a teacher's features, or its
        features and those of each place of its map (Ranzinger et al. 2024, AM-RADIO, arXiv 2312.06709, section 3.3)."""
        teacher_size: Side | None = None
        """Side in pixels to which views are brought for the teacher, for one that takes no other. Default: as they
        are."""
        temperature: Temperature = 4.0
        """Divides the scores of teacher and student (section 2); the paper has 1 to 20."""
        label_weight: Share = 0.0
        """Weight of the cross entropy with the images' labels; the teacher's soft labels have the rest (section 2)."""
        hidden_dims: tuple[Width, ...] = ()
        """Hidden layers, with batch normalisation, between the student's features and those of the teacher."""
        is_crossed: bool = False
        """Learn from a view the teacher's output for the image's next view, instead of the same view."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2."""

        def is_place(self, field: str, text: str) -> bool:
            return field != "teacher" or not (text == UNTRAINED or text.startswith(LIBRARIES))

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config, data = self.config, setup.config.data
        checkpoint: Checkpoint | None = None
        mean: tuple[float, ...] = data.mean
        std: tuple[float, ...] = data.std
        network: Backbone
        if config.teacher == UNTRAINED:
            network = type(backbone)(backbone.config)
        elif config.teacher.startswith(LIBRARIES):
            network, mean, std = read_published(config.teacher)
        else:
            checkpoint = read_teacher(setup)
            network = checkpoint.backbone
        self.images_of_teacher = ImagesOf(data.mean, data.std, mean, std, config.teacher_size)
        teacher: nn.Module = network
        num_outputs = network.feature_dim
        if checkpoint is not None and config.target == "labels":
            classifier = _classifier(checkpoint)
            teacher, num_outputs = nn.Sequential(network, classifier), classifier.out_features
        self.teacher = teacher.requires_grad_(False)
        hidden_dims = config.hidden_dims if config.target != "labels" else ()
        self.head = mlp([backbone.feature_dim, *hidden_dims, num_outputs], norm=True)
        if config.target == "tokens":
            infos = [kind.info(kind.config) for kind in (backbone, network)]
            self.stages = [last_map(info) for info in infos]
            widths = [info.stages[stage] for info, stage in zip(infos, self.stages, strict=True)]
            self.place_head = mlp([widths[0], *hidden_dims, widths[1]], norm=True)

    @property
    def given_parts(self) -> dict[str, str]:
        """Return the teacher, unless it is a random one."""
        return {} if self.config.teacher == UNTRAINED else {"teacher": "teacher"}

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a missing teacher, one that does not take these images, and labels that do not fit it."""
        method = setup.method
        if method.is_crossed and method.target == "tokens":
            raise ConfigError("method.target=tokens compares places of one view; set method.is_crossed=false")
        if method.is_crossed and method.views.num < 2:
            raise ConfigError("method.is_crossed compares views of an image; set method.views.num=2, or leave it out")
        if method.target != "labels" and method.label_weight > 0:
            raise ConfigError(
                f"method.label_weight is {method.label_weight:g}, and features are not classes; set "
                "method.target=labels, or method.label_weight=0"
            )
        if method.teacher is None:
            raise ConfigError(
                "method.teacher is not given; distill learns from a network: give the run or checkpoint of one, "
                "such as method.teacher=runs/supervised, or the word untrained"
            )
        if method.target == "tokens":
            own: type[Backbone] = resolve("backbone", setup.config.backbone.name)
            last_map(own.info(setup.config.backbone))
        if method.teacher == UNTRAINED or method.teacher.startswith(LIBRARIES):
            if method.target == "labels":
                raise ConfigError(
                    f"method.teacher={method.teacher} knows no classes of these images; set method.target=features"
                )
            if method.teacher != UNTRAINED:
                config, side = library_config(method.teacher).at_random(), method.teacher_size or method.views.size
                resolve("backbone", config.name).check_side(config, side)
            return
        _check_teacher(setup, read_teacher(setup))

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Distance of what the student says of this rank's images from what the teacher does."""
        views = batch.views["global"]  # [B, V, C, H, W]
        images = views.flatten(0, 1)
        if self.config.target == "tokens":
            return self._of_tokens(images, views.shape[1])
        h = self.backbone(images)  # [B*V, D]
        student = at_least_fp32(self.head(h)).view(*views.shape[:2], -1)  # [B, V, K]
        self.teacher.eval()  # whatever the method is
        with torch.no_grad():
            teacher = at_least_fp32(self.teacher(self.images_of_teacher(images))).view(
                *views.shape[:2], -1
            )  # [B, V, K]
        if self.config.is_crossed:
            teacher = teacher.roll(1, dims=1)
        if self.config.target == "features":
            loss, agreement = hints(student, teacher)
        else:
            loss, agreement = self._scores(student, teacher, batch.label)
        spread = batch_collapse(h.view(*views.shape[:2], -1))
        return StepOutput(loss, {"agreement": 100 * agreement, **spread})

    def _of_tokens(self, images: Tensor, num_views: int) -> StepOutput:
        """Return the distance of features, and of those of all places, from the teacher's (AM-RADIO, eq. 2 and 3)."""
        h, values = features_and_map(self.backbone, images, self.stages[0])  # [n, D], [n, C, h, w]
        self.teacher.eval()
        with torch.no_grad():
            theirs = features_and_map(self.teacher, self.images_of_teacher(images), self.stages[1])
            summary, places = map(at_least_fp32, theirs)  # [n, K], [n, E, h', w']
        student = at_least_fp32(self.head(h))
        size = places.shape[-2:]
        if values.shape[-2:] != size:
            values = F.interpolate(values, size, mode="bilinear", align_corners=False)
        own = at_least_fp32(self.place_head(values.permute(0, 2, 3, 1).flatten(0, 2)))  # [n*h'*w', E]
        with torch.autocast(images.device.type, enabled=False):
            agreement = F.cosine_similarity(student, summary, dim=-1).mean()
            loss = 1 - agreement + place_distance(own, places.permute(0, 2, 3, 1).flatten(0, 2))
        return StepOutput(
            loss, {"agreement": 100 * agreement.detach(), **batch_collapse(h.view(-1, num_views, h.shape[1]))}
        )

    def _scores(self, student: Tensor, teacher: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of scores [B, V, K], and how often student and teacher name the same class."""
        share = self.config.label_weight
        loss = (1 - share) * soft_labels(student, teacher, self.config.temperature)
        if share > 0:
            targets = one_hot(labels, student.shape[-1], student.dtype)[:, None]  # [B, 1, K]
            loss = loss + share * soft_cross_entropy(student, targets)
        return loss, (student.detach().argmax(dim=-1) == teacher.argmax(dim=-1)).float().mean()


def soft_labels(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the divergence of the student's class probabilities from the teacher's, at a temperature (section 2).

    It is multiplied by the square of the temperature, so that the size of the gradient does not depend on it (section
    2.1). It is 0 where the two agree: the entropy of the teacher's classes is subtracted, which changes no gradient.

    >>> soft_labels(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0]), temperature=4.0)
    tensor(0.)

    Args:
        student, teacher: scores [..., K]; mean over all but the last dimension.
    """
    with torch.autocast(student.device.type, enabled=False):
        p, q = F.log_softmax(student / temperature, dim=-1), F.log_softmax(teacher / temperature, dim=-1)
        return temperature**2 * (q.exp() * (q - p)).sum(dim=-1).mean()


def place_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return nine tenths of the cosine distance and a tenth of the smooth L1 distance of features of places (AM-RADIO,
    Ranzinger et al. 2024, arXiv 2312.06709, eq. 3).

    >>> place_distance(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]))  # 0.1 * (1.5 + 0) / 2
    tensor(0.0750)

    Args:
        student, teacher: [n, E]; mean over rows.
    """
    cosine = 1 - F.cosine_similarity(student, teacher, dim=-1).mean()
    return 0.9 * cosine + 0.1 * F.smooth_l1_loss(student, teacher)


def hints(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared error of features (FitNets, equation 3), and the share of their variance that is explained.

    The teacher's features are first brought to mean 0 and variance 1 over the global batch, each dimension separately,
    so that the loss does not depend on their scale and mean.

    Args:
        student, teacher: features [B, V, D] of this rank's images.
    """
    with torch.autocast(student.device.type, enabled=False):
        var, mean = torch.var_mean(dist.all_gather(teacher), dim=(0, 1), correction=0)  # [D] each
        error = (student - (teacher - mean) / (var + 1e-6).sqrt()).square().mean()
    return error, 1 - error.detach()


def _classifier(checkpoint: Checkpoint) -> nn.Linear:
    """Read the linear classifier from a checkpoint of method=supervised."""
    if checkpoint.meta["method"] != "supervised":
        raise ConfigError(
            f"method.teacher: {checkpoint.uri} is of method={checkpoint.meta['method']}, which knows no classes; set "
            "method.target=features, or give a checkpoint of method=supervised"
        )
    with local_copy(newest(checkpoint.uri, [STATE_FILE]), [STATE_FILE]) as folder:
        state: dict[str, Tensor] = load_tensors(folder / STATE_FILE)["method"]
    layer = nn.Linear(checkpoint.backbone.feature_dim, len(state["classifier.bias"]))
    layer.load_state_dict({name: state[f"classifier.{name}"] for name in ("weight", "bias")})
    return layer


def _check_teacher(setup: Setup, checkpoint: Checkpoint) -> None:
    """Refuse a teacher that the views do not fit, or with other classes."""
    method = setup.method
    size, patch_size = method.teacher_size or method.views.size, checkpoint.backbone.patch_size
    if patch_size is not None and size % patch_size and method.teacher_size is not None:
        raise ConfigError(f"method.teacher_size is {size}, which the teacher's patches of {patch_size} do not cover")
    if patch_size is not None and size % patch_size:
        raise ConfigError(
            f"views of {size} pixels are not covered by the teacher's patches of {patch_size}; set "
            f"{find_size_setting(setup.config, size)}={(size // patch_size + 1) * patch_size}"
        )
    if method.target == "labels":
        num_classes = _classifier(checkpoint).out_features
        if method.label_weight > 0 and num_classes != setup.data.num_classes:
            raise ConfigError(
                f"the teacher knows {num_classes} classes, and the images have {setup.data.num_classes}; set "
                "method.label_weight=0, or give a teacher of the same classes"
            )
