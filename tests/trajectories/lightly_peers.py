"""Models put together from lightly's parts, one for each method that lightly has an example of."""

import copy
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from lightly.loss import (
    BarlowTwinsLoss,
    DCLLoss,
    DINOLoss,
    MACLLoss,
    NegativeCosineSimilarity,
    NTXentLoss,
    SwaVLoss,
    VICRegLoss,
)
from lightly.models import utils
from lightly.models.modules import heads
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.schedule import Step
from tests.trajectories.ours import Course, Peer

NOT_BESIDE = {
    "aim": "lightly's example predicts each patch from its own token, and the prefix too; the paper predicts the next "
    "patch, and those behind the prefix alone",
    "nnclr": "lightly contrasts neighbours and predictions as SimCLR does, with the other rows of either view as "
    "negatives; the paper's eq. 3 has predictions of the other view alone",
    "tico": "lightly lets no gradient flow through what the batch adds to the covariance; the paper's algorithm 1 does",
    "dino_v2": "lightly centres the teacher's scores by a running mean; DINOv2 balances them with Sinkhorn-Knopp",
    "ijepa": "lightly's masks have one size in a batch, as its collator cuts them; raysl's belong to each image",
}
"""Methods of the same name that are not the same method, each with the reason. Plain loops stand beside these
(`test_beside_plain_loops.py`)."""


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and floating buffers in the order of the network, named."""
    return ((name, value) for name, value in module.state_dict().items() if value.is_floating_point())


def same(what: str, ours: nn.Module, theirs: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    """Tensors of two modules of the same build, one after another."""
    return [
        (f"{what}.{name}", found, expected)
        for (name, found), (_, expected) in zip(tensors(ours), tensors(theirs), strict=True)
    ]


def filled(theirs: nn.Module, ours: nn.Module) -> nn.Module:
    """Lightly's module with the weights of raysl's of the same build."""
    theirs = theirs.double()
    for _, found, value in same("", theirs, ours):
        assert found.shape == value.shape
        found.copy_(value)
    return theirs


class Convnet(Peer):
    """A backbone of raysl's and parts of lightly's, named as raysl names them.

    `parts` are trained and compared; of `teachers`, each follows the module named by its value.
    """

    def __init__(self, course: Course) -> None:
        method: Any = course.begun
        self.config = course.config
        self.parts: dict[str, nn.Module] = {"backbone": copy.deepcopy(method.backbone)}

    def trained(self) -> list[nn.Parameter]:
        """Of all parts."""
        parameters = chain.from_iterable(part.parameters() for part in self.parts.values())
        return [parameter for parameter in parameters if parameter.requires_grad]

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """Of all parts."""
        return [pair for name, part in self.parts.items() for pair in same(name, getattr(ended, name), part)]

    def embed(self, images: Tensor) -> Tensor:
        """Projections of images."""
        return self.parts["projector"](self.parts["backbone"](images))


def cosine_momentum(step: Step, begin: float, end: float) -> float:
    """Lightly's cosine; raysl's counts the updates, of which the last is not the end."""
    return cosine_schedule(step.index, step.total + 1, begin, end)


class Following:
    """Teachers that follow parts by lightly's `update_momentum`; they start as `copies` of them."""

    def __init__(self, *students: nn.Module, copies: nn.Module | None = None) -> None:
        self.students = nn.Sequential(*students)
        self.teacher = copy.deepcopy(self.students) if copies is None else nn.Sequential(copies)
        utils.deactivate_requires_grad(self.teacher)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return self.teacher(images)  # type: ignore[no-any-return]

    def follow(self, momentum: float) -> None:
        """One update."""
        utils.update_momentum(self.students, self.teacher, momentum)


def head_like(ours: nn.Sequential) -> heads.ProjectionHead:
    """Lightly's head of the layers and with the weights of raysl's."""
    blocks: list[Any] = []
    for layer in ours:
        if isinstance(layer, nn.Linear):
            blocks.append([layer.in_features, layer.out_features, None, None, layer.bias is not None])
        else:
            blocks[-1][2 if isinstance(layer, nn.BatchNorm1d) else 3] = copy.deepcopy(layer)
    head = heads.ProjectionHead([tuple(block) for block in blocks])
    filled(head.layers, ours)
    return head


def two(batch: Batch) -> tuple[Tensor, Tensor]:
    """Both views [B, C, H, W]."""
    first, second = batch.views["global"].unbind(1)
    return first, second


class SimCLR(Convnet):
    """Both views through the networks as one batch, as the authors' code has them."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"] = head_like(method.projector)
        self.criterion: nn.Module = NTXentLoss(self.config.temperature)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of both views."""
        return self.criterion(*self.embed(torch.cat(two(batch))).chunk(2))  # type: ignore[no-any-return]


class DCL(SimCLR):
    """SimCLR's networks."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.criterion = DCLLoss(self.config.temperature)


class MACL(SimCLR):
    """SimCLR's networks, and without the 1e-8 that lightly adds to the probability of a mistake."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.criterion = MACLLoss(self.config.temperature, self.config.growth, self.config.threshold)
        self.criterion.eps = 0.0


class MoCo(Convnet):
    """A queue whose length is a multiple of the batch, as lightly's bank wraps nothing around. The shuffle of keys is
    left out: on one process it changes the order of sums alone."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"] = head_like(method.projector)
        self.keys = Following(*self.parts.values())
        self.criterion = NTXentLoss(self.config.temperature, memory_bank_size=tuple(method.queue.keys.shape)).double()
        self.criterion.memory_bank.bank.copy_(method.queue.keys)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of the first view's queries."""
        query, key = two(batch)
        return self.criterion(self.embed(query), self.keys(key))  # type: ignore[no-any-return]

    def after_update(self, batch: Batch, step: Step) -> None:
        """Keys follow."""
        self.keys.follow(self.config.momentum)

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """With the teacher and the queue."""
        method: Any = ended
        queue = ("queue", method.queue.keys, self.criterion.memory_bank.bank)
        return [*super().pairs(ended), *same("teacher", method.teacher.module, self.keys.teacher), queue]


class BYOL(Convnet):
    """Lightly halves the sum of both directions and leaves out the factor of the squared distance: a quarter of eq. 2
    and its mirror image."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"] = head_like(method.projector)
        self.target = Following(*self.parts.values())
        self.parts["predictor"] = head_like(method.predictor)
        self.criterion = NegativeCosineSimilarity()

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of both directions."""
        views, predictor = two(batch), self.parts["predictor"]
        first, second = (predictor(self.embed(view)) for view in views)
        to_first, to_second = (self.target(view) for view in views)
        return 4 * 0.5 * (self.criterion(first, to_second) + self.criterion(second, to_first))

    def after_update(self, batch: Batch, step: Step) -> None:
        """The target follows."""
        self.target.follow(cosine_momentum(step, self.config.momentum, self.config.final_momentum))

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """With the target."""
        method: Any = ended
        return [*super().pairs(ended), *same("teacher", method.teacher.module, self.target.teacher)]


class SimSiam(Convnet):
    """Two views, each normalised for itself."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"], self.parts["predictor"] = head_like(method.projector), head_like(method.predictor)
        self.criterion = NegativeCosineSimilarity()

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of both directions."""
        z_first, z_second = (self.embed(view) for view in two(batch))
        p_first, p_second = self.parts["predictor"](z_first), self.parts["predictor"](z_second)
        there, back = self.criterion(p_first, z_second.detach()), self.criterion(p_second, z_first.detach())
        return 0.5 * (there + back)  # type: ignore[no-any-return]


class FastSiam(SimSiam):
    """Each view is normalised for itself."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of each view, with the mean of the others as target."""
        z = torch.stack([self.embed(view) for view in batch.views["global"].unbind(1)])
        numbers = torch.arange(len(z))
        targets = [z[numbers != view].mean(dim=0).detach() for view in numbers]
        return torch.stack(
            [self.criterion(self.parts["predictor"](rows), target) for rows, target in zip(z, targets, strict=True)]
        ).mean()


class BarlowTwins(Convnet):
    """The authors' factor of the loss is not in lightly's."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"] = head_like(method.projector)
        self.criterion = BarlowTwinsLoss(self.config.redundancy)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each view is normalised for itself."""
        z_first, z_second = (self.embed(view) for view in two(batch))
        return self.config.scale * self.criterion(z_first, z_second)  # type: ignore[no-any-return]


class VICReg(Convnet):
    """Each view is normalised for itself. Lightly, like the authors' code, has half the sum of both variance terms, so
    its weight is twice raysl's."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["expander"] = head_like(method.expander)
        weights = self.config.invariance, 2 * self.config.variance, self.config.covariance
        self.criterion = VICRegLoss(*weights, eps=self.config.eps)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of both views."""
        z_first, z_second = (self.parts["expander"](self.parts["backbone"](view)) for view in two(batch))
        return self.criterion(z_first, z_second)  # type: ignore[no-any-return]


def sizes(batch: Batch) -> list[Tensor]:
    """Views of each size [V, B, C, H, W]: large ones, small ones."""
    return [batch.views[name].transpose(0, 1) for name in ("global", "local") if name in batch.views]


def by_size(network: Callable[[Tensor], Tensor], groups: list[Tensor]) -> list[Tensor]:
    """What a network gives for each view [B, D], all views of one size in one pass, as the authors' code has it."""
    passed = (network(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in groups)
    return [view for group in passed for view in group]


class SwAV(Convnet):
    """Lightly's prototypes have biases, which are 0 and held here, as neither the paper nor its code has them."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        config = self.config
        self.parts["projector"] = head_like(method.projector)
        self.prototypes = heads.SwaVPrototypes(config.output_dim, list(config.prototypes)).double()
        for theirs, own in zip(self.prototypes.heads, method.prototypes, strict=True):
            theirs.weight.data.copy_(own.weight)
            theirs.bias.data.zero_()
            theirs.bias.requires_grad_(False)
        self.criterion = SwaVLoss(config.temperature, config.sinkhorn_iters, config.epsilon)
        self.queue = None if method.queue is None else method.queue.keys.clone()  # [Q, A, P], the newest last

    def trained(self) -> list[nn.Parameter]:
        """With the prototypes."""
        return [*super().trained(), *(head.weight for head in self.prototypes.heads)]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Mean over heads."""
        groups = sizes(batch)
        h = torch.cat(by_size(self.parts["backbone"], groups))
        z = F.normalize(self.parts["projector"](h), dim=1).unflatten(0, (-1, len(batch)))  # [V, B, P]
        self.large = z[: len(groups[0])].detach()
        queued = None
        if self.queue is not None and self.config.queue_from.is_over(step):
            queued = [self.prototypes(keys) for keys in self.queue.unbind(1)]
        scores = [self.prototypes(view) for view in z]
        losses = [
            self.criterion(
                [view[head] for view in scores[: len(groups[0])]],
                [view[head] for view in scores[len(groups[0]) :]],
                None if queued is None else [view[head] for view in queued],
            )
            for head in range(len(self.prototypes.heads))
        ]
        return torch.stack(losses).mean()

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes for a while."""
        if not self.config.freeze_prototypes.is_over(step):
            for head in self.prototypes.heads:
                head.weight.grad = None

    def after_update(self, batch: Batch, step: Step) -> None:
        """Prototypes of length 1, and a queue, first in, first out."""
        self.prototypes.normalize()
        if self.queue is not None and self.config.queue_from.is_over(step):
            self.queue = torch.cat([self.queue, self.large.transpose(0, 1)])[len(batch) :]

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """With the prototypes."""
        method: Any = ended
        heads_ = zip(method.prototypes, self.prototypes.heads, strict=True)
        return [*super().pairs(ended), *(("prototypes.weight", own.weight, theirs.weight) for own, theirs in heads_)]


class SMoG(Convnet):
    """Lightly takes embeddings of any length into its groups; raysl's are of length 1. k-means begins behind these
    steps."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["projector"], self.parts["predictor"] = head_like(method.projector), head_like(method.predictor)
        self.teacher = Following(self.parts["backbone"], self.parts["projector"])
        self.groups = heads.SMoGPrototypes(method.groups.clone(), self.config.group_momentum)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """The teacher follows first in lightly's example, so that it has seen the same updates."""
        first, second = two(batch)
        z = self.embed(first)
        told = self.groups.assign_groups(self.teacher(second))
        groups = self.groups.get_updated_group_features(F.normalize(z, dim=1))
        scores = self.groups(self.parts["predictor"](z), groups, temperature=self.config.temperature)
        self.groups.set_group_features(groups.detach())
        return F.cross_entropy(scores, told)

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        self.teacher.follow(self.config.momentum)

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """With the teacher and the groups."""
        method: Any = ended
        return [
            *super().pairs(ended),
            *same("teacher", method.teacher.module, self.teacher.teacher),
            ("groups", method.groups, self.groups.group_features),
        ]


class DINO(Convnet):
    """One head for all views; the temperature is constant in the digits' configuration."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        method: Any = course.begun
        self.parts["head"] = dino_head(self.config.head, method.head)
        self.teacher = Following(self.parts["backbone"])
        copied = dino_head(self.config.head, method.head)  # weight_norm cannot be copied
        self.teacher_head = Following(self.parts["head"], copies=copied)
        self.criterion = dino_loss(self.config)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Each view against the large ones that it is not."""
        groups = sizes(batch)
        scores = self.parts["head"](torch.cat(by_size(self.parts["backbone"], groups)))
        large = self.teacher_head(torch.cat(by_size(self.teacher, groups[:1])))
        told, said = (list(rows.unflatten(0, (-1, len(batch)))) for rows in (large, scores))
        return self.criterion(told, said, teacher_temp=self.config.teacher_temp)  # type: ignore[no-any-return]

    def after_backward(self, step: Step) -> None:
        """Hold the prototypes in the first epoch."""
        self.parts["head"].cancel_last_layer_gradients(step.epoch)  # type: ignore[operator]

    def after_update(self, batch: Batch, step: Step) -> None:
        """The teacher follows."""
        momentum = cosine_momentum(step, self.config.momentum, self.config.momentum_end)
        self.teacher.follow(momentum)
        self.teacher_head.follow(momentum)

    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """Of student and teacher, with the centre; the lengths of prototypes are 1 in lightly's head."""
        method: Any = ended
        return [
            *same("backbone", method.backbone, self.parts["backbone"]),
            *same("teacher", method.teacher.module, self.teacher.teacher[0]),
            *head_pairs("head", method.head, self.parts["head"]),
            *head_pairs("teacher_head", method.teacher_head.module, self.teacher_head.teacher[0]),
            ("centre", method.centre.value, self.criterion.center.flatten()),
        ]


def dino_head(config: Any, ours: Any) -> nn.Module:
    """Lightly's head with the weights of raysl's."""
    dims = ours.mlp[0].in_features, config.hidden_dim, config.bottleneck_dim, config.num_prototypes
    head = heads.DINOProjectionHead(
        *dims, batch_norm=config.norm, freeze_last_layer=1, norm_last_layer=config.last_layer == "unit"
    ).double()
    filled(head.layers, ours.mlp)
    head.last_layer.weight_v.data.copy_(ours.last.weight)
    return head


def head_pairs(what: str, ours: Any, theirs: Any) -> list[tuple[str, Tensor, Tensor]]:
    """Of two heads."""
    last = (f"{what}.last.weight", ours.last.weight, theirs.last_layer.weight_v)
    return [*same(what, ours.mlp, theirs.layers), last]


def dino_loss(config: Any) -> DINOLoss:
    """With the settings of a method."""
    loss = DINOLoss(config.head.num_prototypes, student_temp=config.temperature, center_momentum=config.centre_momentum)
    return loss.double()


CONVNET_PEERS: dict[str, tuple[Callable[[Course], Peer], tuple[str, ...]]] = {
    "simclr": (SimCLR, ()),
    "dcl": (DCL, ()),
    "macl": (MACL, ("method.threshold=0.2",)),
    "moco": (MoCo, ("method.queue_size=32",)),
    "byol": (BYOL, ()),
    "simsiam": (SimSiam, ()),
    "fastsiam": (FastSiam, ()),
    "barlow_twins": (BarlowTwins, ()),
    "vicreg": (VICReg, ()),
    "swav": (SwAV, ("method.queue_length=0",)),
    "swav-queue": (SwAV, ("method.queue_length=32", "method.queue_from=0st", "method.queue_start=random")),
    "smog": (SMoG, ("method.reset_every=300st",)),
    "dino": (DINO, ()),
}
"""By method, with what else a name tells behind a dash: what makes the peer, and further settings."""
