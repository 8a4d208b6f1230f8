"""What a student learns from one teacher: the networks, and the distance of features and of those of places.

Ranzinger, Heinrich, Kautz and Molchanov 2024, AM-RADIO, arXiv 2312.06709, section 3.3: a student has heads of its own
for each teacher.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.checkpoint.backbone import Checkpoint
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Setup
from raysl.methods.shared.teacher_networks import (
    UNTRAINED,
    ImagesOf,
    TeacherConfig,
    is_path,
    read_classifier,
    read_published,
    read_teacher,
)
from raysl.nn import features_and_map, last_map, mlp


@dataclass(frozen=True)
class Lesson:
    """A teacher, and the student's heads for it; the method owns the modules.

    Args:
        images: turns the student's images into the teacher's.
        head: layers from the student's features to the teacher's features or scores.
        stage: the teacher's map, for target=tokens.
        place_head: layers from the features of a place to the teacher's.
    """

    settings: TeacherConfig
    images: ImagesOf
    teacher: nn.Module
    head: nn.Module
    stage: str = ""
    place_head: nn.Module | None = None


def make_lesson(setup: Setup, backbone: Backbone, key: str, settings: TeacherConfig) -> Lesson:
    """Read a teacher, and make the student's heads for it.

    Args:
        setup: setup of the run; its method's `hidden_dims` are those of the heads.
    """
    data = setup.config.data
    mean: tuple[float, ...] = data.mean
    std: tuple[float, ...] = data.std
    network: Backbone
    checkpoint: Checkpoint | None = None
    if settings.teacher == UNTRAINED:
        network = type(backbone)(backbone.config)
    elif is_path(settings.teacher):
        checkpoint = read_teacher(setup, key, settings.teacher)
        network = checkpoint.backbone
    else:
        network, mean, std = read_published(settings.teacher)
    images = ImagesOf(data.mean, data.std, mean, std, settings.size)
    teacher: nn.Module = network
    num_outputs = network.feature_dim
    if checkpoint is not None and settings.target == "labels":
        classifier = read_classifier(checkpoint)
        teacher, num_outputs = nn.Sequential(network, classifier), classifier.out_features
    hidden_dims = setup.method.hidden_dims if settings.target != "labels" else ()
    head = mlp([backbone.feature_dim, *hidden_dims, num_outputs], norm=True)
    teacher = teacher.requires_grad_(False)
    if settings.target != "tokens":
        return Lesson(settings, images, teacher, head)
    student_info, teacher_info = (kind.info(kind.config) for kind in (backbone, network))
    widths = [info.stages[last_map(info)] for info in (student_info, teacher_info)]
    place_head = mlp([widths[0], *hidden_dims, widths[1]], norm=True)
    return Lesson(settings, images, teacher, head, last_map(teacher_info), place_head)


@torch.no_grad()
def ask(lesson: Lesson, images: Tensor) -> tuple[Tensor, ...]:
    """Return a teacher's features or scores [n, K] of images, and for target=tokens its map [n, E, h, w]."""
    lesson.teacher.eval()  # whatever the method is
    images = lesson.images(images)
    return features_and_map(lesson.teacher, images, lesson.stage) if lesson.stage else (lesson.teacher(images),)


def token_distance(lesson: Lesson, h: Tensor, values: Tensor, outputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weighted distance of features, and of those of all places, from a teacher's (AM-RADIO, eq. 2 and 3),
    and the cosine of the features.

    Args:
        h, values: features [n, D] and map [n, C, h, w] of the student.
        outputs: features [n, K] and map [n, E, h', w'] of the teacher.
    """
    assert lesson.place_head is not None
    student, (summary, spatial) = at_least_fp32(lesson.head(h)), outputs
    # teachers have grids of their own, so the student's map is resized to the teacher's
    if values.shape[-2:] != spatial.shape[-2:]:
        values = F.interpolate(values, spatial.shape[-2:], mode="bilinear", align_corners=False)
    student_spatial = at_least_fp32(lesson.place_head(values.permute(0, 2, 3, 1).flatten(0, 2)))  # [n*h'*w', E]
    with torch.autocast(h.device.type, enabled=False):
        agreement = F.cosine_similarity(student, summary, dim=-1).mean()
        distance = place_distance(student_spatial, spatial.permute(0, 2, 3, 1).flatten(0, 2))
        return lesson.settings.weight * (1 - agreement) + lesson.settings.place_weight * distance, agreement


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
