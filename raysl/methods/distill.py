"""Distill: Distilling the Knowledge in a Neural Network.

Hinton, Vinyals and Dean 2015, arXiv 1503.02531. A trained, frozen network teaches another one: its class scores at a
high temperature, or its features, as the hints of Romero et al. 2014 (FitNets, arXiv 1412.6550), which need no classes.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.ranges import Location, Share, Side, Temperature, Width, Within
from raysl.losses import at_least_fp32, one_hot, soft_cross_entropy
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.methods.shared.teacher_heads import Lesson, make_lesson, token_distance
from raysl.methods.shared.teacher_networks import (
    UNTRAINED,
    Target,
    TeacherConfig,
    check_several,
    check_teacher,
    is_path,
)
from raysl.methods.shared.teacher_outputs import TeacherOutputs, check_cache
from raysl.nn import COLLAPSE, batch_collapse, features_and_map, last_map
from raysl.transforms import Crops, ViewRecipe


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
        teachers: tuple[TeacherConfig, ...] = ()
        """Several teachers in place of one, with heads of the student for each: [{teacher: runs/x, target: features},
        {teacher: "timm:vit_small_patch14_dinov2.lvd142m", size: 518, weight: 1}]. The loss is the sum of theirs, as in
        AM-RADIO."""
        target: Target = "labels"
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
        cycle: Annotated[int, Within(1, 10_000)] | None = None
        """Epochs after which the views of an image come again: 1 shows the same ones in every epoch. Default: new ones
        in every epoch."""
        cache: Location | None = None
        """Folder on a disk that keeps the teacher's outputs: each is computed once and read when the views come again,
        in this run and in others with the same teacher, images, views and seed. It needs method.cycle."""
        views: Crops = field(default_factory=lambda: Crops(num=1, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0))
        """One crop, mirrored with probability 1/2."""

        def is_place(self, field: str, text: str) -> bool:
            return super().is_place(field, text) and (field != "teacher" or is_path(text))

        @property
        def all_teachers(self) -> dict[str, TeacherConfig]:
            """The teachers, by their keys below `method`."""
            if self.teachers or self.teacher is None:
                return {f"teachers[{number}]": each for number, each in enumerate(self.teachers)}
            return {"teacher": TeacherConfig(teacher=self.teacher, target=self.target, size=self.teacher_size)}

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        config = self.config
        teachers = config.all_teachers.items()
        has_map = any(teacher.target == "tokens" for _, teacher in teachers)
        self.stage = last_map(backbone.info(backbone.config)) if has_map else ""
        self.lessons = tuple(make_lesson(setup, backbone, key, teacher) for key, teacher in teachers)
        self.teacher_outputs = TeacherOutputs(setup, self.lessons)
        place_heads = [lesson.place_head for lesson in self.lessons if lesson.place_head is not None]
        # torch finds no modules inside a tuple of lessons, so they are registered here, with names for checkpoints
        if config.teachers:
            self.images_of_teachers = nn.ModuleList(lesson.images for lesson in self.lessons)
            self.teachers = nn.ModuleList(lesson.teacher for lesson in self.lessons)
            self.heads = nn.ModuleList(lesson.head for lesson in self.lessons)
            self.place_heads = nn.ModuleList(place_heads)
        else:
            (lesson,) = self.lessons
            self.images_of_teacher, self.teacher, self.head = lesson.images, lesson.teacher, lesson.head
            if place_heads:
                (self.place_head,) = place_heads

    @classmethod
    def logged_by(cls, config: Any) -> tuple[str, ...]:
        """Of several teachers also `NAME_loss` and `NAME_agreement` of each."""
        names = [teacher.title for teacher in config.teachers]
        return (*cls.logged, *(f"{name}_{what}" for name in names for what in ("loss", "agreement")))

    @property
    def given_parts(self) -> dict[str, str]:
        """Return the teachers, unless all are random ones."""
        if all(lesson.settings.teacher == UNTRAINED for lesson in self.lessons):
            return {}
        return {"teachers": "teachers"} if self.config.teachers else {"teacher": "teacher"}

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse a missing teacher, one that does not take these images, and labels that do not fit it."""
        method = setup.method
        if method.teachers:
            check_several(method)
        targets = {teacher.target for teacher in method.all_teachers.values()} or {method.target}
        if method.is_crossed and "tokens" in targets:
            raise ConfigError("method.target=tokens compares places of one view; set method.is_crossed=false")
        if method.is_crossed and method.views.num < 2:
            raise ConfigError("method.is_crossed compares views of an image; set method.views.num=2, or leave it out")
        if targets != {"labels"} and method.label_weight > 0:
            raise ConfigError(
                f"method.label_weight is {method.label_weight:g}, and features are not classes; set "
                "method.target=labels, or method.label_weight=0"
            )
        if method.teacher is None and not method.teachers:
            raise ConfigError(
                "method.teacher is not given; distill learns from a network: give the run or checkpoint of one, "
                "such as method.teacher=runs/supervised, or the word untrained"
            )
        if "tokens" in targets:
            student: type[Backbone] = resolve("backbone", setup.config.backbone.name)
            last_map(student.info(setup.config.backbone))
        if method.cache is not None:
            check_cache(setup)
        for key, teacher in method.all_teachers.items():
            check_teacher(setup, teacher, key)

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the views of `Config.views`, which come again after `cycle` epochs."""
        return replace(super().views(setup), cycle=setup.method.cycle)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Distance of what the student says of this rank's images from what its teachers do."""
        views = batch.views["global"]  # [B, V, C, H, W]
        images = views.flatten(0, 1)
        if self.stage:
            h, values = features_and_map(self.backbone, images, self.stage)  # [n, D], [n, C, h, w]
        else:
            h, values = self.backbone(images), None
        losses, agreements = [], []
        carry: dict[str, Tensor] = {}
        for number, lesson in enumerate(self.lessons):
            outputs = self.teacher_outputs.outputs(number, images, batch)
            carry |= self.teacher_outputs.carry(number, outputs, views.shape[1])
            targets = [at_least_fp32(output) for output in outputs]
            if values is not None and lesson.place_head is not None:
                loss, agreement = token_distance(lesson, h, values, targets)
            else:
                loss, agreement = self._of_features(lesson, h, targets[0], views.shape[1], batch.label)
            losses.append(loss)
            agreements.append(100 * agreement.detach())
        metrics = {"agreement": torch.stack(agreements).mean(), **batch_collapse(h.view(*views.shape[:2], -1))}
        if self.config.teachers:
            for lesson, loss, agreement in zip(self.lessons, losses, agreements, strict=True):
                name = lesson.settings.title
                metrics |= {f"{name}_loss": loss.detach(), f"{name}_agreement": agreement}
        return StepOutput(torch.stack(losses).sum(), metrics, carry)

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Store what the teachers said, if `method.cache` says where."""
        self.teacher_outputs.store(batch, carry)

    def _of_features(
        self, lesson: Lesson, h: Tensor, targets: Tensor, num_views: int, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted distance of the student's features or scores from a teacher's, and how far they agree."""
        student = at_least_fp32(lesson.head(h))
        student = student.view(-1, num_views, student.shape[1])  # [B, V, K]
        teacher = targets.view(-1, num_views, targets.shape[1])
        if self.config.is_crossed:
            teacher = teacher.roll(1, dims=1)
        if lesson.settings.target == "features":
            loss, agreement = hints(student, teacher)
        else:
            loss, agreement = self._scores(student, teacher, labels)
        return lesson.settings.weight * loss, agreement

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
