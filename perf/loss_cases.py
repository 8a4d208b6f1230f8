"""The cases of `python -m perf loss`: each loss or part of a method in raysl, in lightly or faiss, and in a plain form.

Every contender of a case gets the same numbers, and does its forward and its backward pass where it has one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.losses import barlow_twins, dcl, dino, info_nce, nt_xent, sup_con, swapped_prediction, vicreg
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.dino_head import Centre
from raysl.nn.ema import Teacher
from raysl.nn.kmeans import kmeans
from raysl.nn.moments import covariances, cross_correlation
from raysl.nn.queue import Queue
from raysl.nn.sinkhorn import sinkhorn

Contenders = dict[str, Callable[[], object]]
"""raysl, a peer (lightly, faiss) where there is one, and plain: the naive form, or the bare operations below it."""

ROUNDS = 2  # of k-means, then an assignment
MOMENTUM = 0.996


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of all inputs; the defaults are those of the papers' runs, for one GPU."""

    batch: int = 512  # images, with two views each
    large_batch: int = 16_384  # of NT-Xent, where only memory matters
    small_batch: int = 64  # of DINO, with two large views and eight small ones
    dim: int = 128  # of embeddings
    wide: int = 2_048  # of those of Barlow Twins and VICReg
    queue: int = 65_536  # keys of MoCo
    prototypes: int = 3_000  # of SwAV
    many_prototypes: int = 65_536  # of DINO, and for the Sinkhorn-Knopp of `batch` rows
    rows: int = 4_096  # of the Sinkhorn-Knopp with `prototypes`
    classes: int = 1_000
    points: int = 64_000  # of k-means; a twentieth of ImageNet's images
    centroids: int = 3_000
    depth: int = 50  # of the ResNet with a teacher


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    title: str  # with the names of `Sizes` in braces
    build: Callable[[Sizes], Contenders]
    goals: dict[str, float] = field(default_factory=dict)  # largest ratios of times, by names such as `raysl/lightly`
    most_mb: float | None = None  # largest memory of raysl, where that is a goal
    is_timed: bool = True  # whether contenders take turns; else each runs once, for its memory


def _nt_xent(sizes: Sizes) -> Contenders:
    z, rows = torch.randn(sizes.batch, 2, sizes.dim), torch.arange(sizes.batch)

    def plain(z: Tensor) -> Tensor:
        flat = F.normalize(z, dim=-1).flatten(0, 1)
        logits = (flat @ flat.T / 0.1).fill_diagonal_(-torch.inf)
        return F.cross_entropy(logits, torch.arange(len(flat)) ^ 1)

    ours = {"raysl": _both(lambda z: nt_xent(z, z, rows), z), "plain": _both(plain, z)}
    return ours | _lightly(_of_pair, z, "NTXentLoss", temperature=0.1)


def _large_nt_xent(sizes: Sizes) -> Contenders:
    z, rows = torch.randn(sizes.large_batch, 2, sizes.dim), torch.arange(sizes.large_batch)
    return {"raysl": _both(lambda z: nt_xent(z, z, rows), z)}


def _info_nce(sizes: Sizes) -> Contenders:
    q, k = torch.randn(sizes.batch, sizes.dim), torch.randn(sizes.batch, sizes.dim)
    queue = Queue(sizes.queue, sizes.dim)

    def plain(q: Tensor) -> Tensor:
        q, keys = F.normalize(q, dim=1), F.normalize(k, dim=1)
        logits = torch.cat([(q * keys).sum(dim=1, keepdim=True), q @ queue.keys.T], dim=1) / 0.07
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64))

    def push() -> None:
        queue.push(k)

    ours = _both(lambda q: info_nce(q, k, queue.keys), q)
    settings = {"temperature": 0.07, "memory_bank_size": (sizes.queue, sizes.dim)}
    by_lightly = _lightly(lambda loss, q: loss(q, k), q, "NTXentLoss", **settings)
    return {"raysl": _then(ours, push), "plain": _then(_both(plain, q), push)} | by_lightly


def _sup_con(sizes: Sizes) -> Contenders:
    z, rows = torch.randn(sizes.batch, 2, sizes.dim), torch.arange(sizes.batch)
    labels = torch.randint(sizes.classes, (sizes.batch,))

    def plain(z: Tensor) -> Tensor:
        flat, label = F.normalize(z, dim=-1).flatten(0, 1), labels.repeat_interleave(2)
        itself = torch.eye(len(flat), dtype=torch.bool)
        log_p = (flat @ flat.T / 0.1).masked_fill(itself, -torch.inf).log_softmax(dim=1)
        positive = (label[:, None] == label) & ~itself
        return -(log_p.masked_fill(~positive, 0).sum(dim=1) / positive.sum(dim=1)).mean()

    return {"raysl": _both(lambda z: sup_con(z, z, rows, labels), z), "plain": _both(plain, z)}


def _dcl(sizes: Sizes) -> Contenders:
    z, rows = torch.randn(sizes.batch, 2, sizes.dim), torch.arange(sizes.batch)
    return {"raysl": _both(lambda z: dcl(z, z, rows), z)} | _lightly(_of_pair, z, "DCLLoss", temperature=0.1)


def _barlow_twins(sizes: Sizes) -> Contenders:
    z = torch.randn(sizes.batch, 2, sizes.wide)
    ours = _both(lambda z: barlow_twins(cross_correlation(z), 0.005, scale=1.0).loss, z)
    return {"raysl": ours} | _lightly(_of_pair, z, "BarlowTwinsLoss")


def _vicreg(sizes: Sizes) -> Contenders:
    z = torch.randn(sizes.batch, 2, sizes.wide)
    # a weight of 12.5 for the variance; lightly halves it
    return {"raysl": _both(lambda z: vicreg(z, covariances(z)).loss, z)} | _lightly(_of_pair, z, "VICRegLoss")


def _dino(sizes: Sizes) -> Contenders:
    num_views, num_large = 10, 2
    scores = torch.randn(sizes.small_batch, num_views, sizes.many_prototypes).mul_(0.1)
    targets = torch.randn(sizes.small_batch, num_large, sizes.many_prototypes).mul_(0.1)
    centre = Centre(sizes.many_prototypes)
    ours = _both(lambda scores: dino(scores, centre(targets, 0.04)), scores)
    views = list(targets.unbind(dim=1))

    def by_lightly(loss: Any, scores: Tensor) -> Any:
        return loss(views, list(scores.unbind(dim=1)), teacher_temp=0.04)

    contenders: Contenders = {"raysl": _then(ours, lambda: centre.update(targets.mean(dim=1), 0.9))}
    return contenders | _lightly(by_lightly, scores, "DINOLoss", output_dim=sizes.many_prototypes)


def _swapped(sizes: Sizes) -> Contenders:
    scores = torch.randn(sizes.batch, 2, sizes.prototypes).mul_(0.1)

    def ours(scores: Tensor) -> Tensor:
        codes = torch.stack([sinkhorn(scores[:, view]) for view in range(2)], dim=1)  # [B, 2, K]
        return swapped_prediction(scores, codes, (0, 1))

    def plain(scores: Tensor) -> Tensor:
        terms = []
        for view in range(2):
            codes = _products(scores[:, view].detach())
            terms.append(-(codes * F.log_softmax(scores[:, 1 - view] / 0.1, dim=1)).sum(dim=1).mean())
        return (terms[0] + terms[1]) / 2

    by_lightly = _lightly(lambda loss, scores: loss([scores[:, 0], scores[:, 1]], []), scores, "SwaVLoss")
    return {"raysl": _both(ours, scores), "plain": _both(plain, scores)} | by_lightly


def _sinkhorn(rows: int, prototypes: int) -> Contenders:
    scores = torch.randn(rows, prototypes).mul_(0.1)
    contenders: Contenders = {"raysl": lambda: sinkhorn(scores), "plain": lambda: _products(scores)}
    if has_lightly():
        from lightly.loss.swav_loss import sinkhorn as lightly_sinkhorn

        contenders["lightly"] = lambda: lightly_sinkhorn(scores)
    return contenders


@torch.no_grad()
def _products(scores: Tensor) -> Tensor:
    """The paper's listing: nothing but exp, sums and products of the whole matrix; it overflows at other scores."""
    q = (scores / 0.05).exp_()
    for _ in range(3):
        q /= q.sum(dim=0)
        q /= q.sum(dim=1, keepdim=True)
    return q


def _kmeans(sizes: Sizes) -> Contenders:
    rows = F.normalize(torch.randn(sizes.points, sizes.dim), dim=1)

    def by_faiss() -> object:
        import faiss

        index = faiss.Kmeans(
            sizes.dim,
            sizes.centroids,
            niter=ROUNDS,
            spherical=True,
            seed=0,
            min_points_per_centroid=1,
            max_points_per_centroid=len(rows),
        )
        index.train(rows.numpy())
        return index.index.search(rows.numpy(), 1)

    contenders: Contenders = {"raysl": lambda: kmeans(rows, sizes.centroids, ROUNDS, seed=0)}
    if find_spec("faiss"):
        contenders["faiss"] = by_faiss
    return contenders


def _ema(sizes: Sizes) -> Contenders:
    network: nn.Module = ResNet(ResNet.Config(depth=sizes.depth))  # type: ignore[arg-type]
    teacher = Teacher(network)
    weights: list[Tensor] = list(teacher.module.parameters())
    to: list[Tensor] = list(network.parameters())

    @torch.no_grad()
    def plain() -> None:
        torch._foreach_lerp_(weights, to, 1 - MOMENTUM)

    contenders: Contenders = {"raysl": lambda: teacher.update(network, MOMENTUM), "plain": plain}
    if has_lightly():
        from lightly.models.utils import update_momentum

        contenders["lightly"] = lambda: update_momentum(network, teacher.module, MOMENTUM)
    return contenders


CASES = {
    "nt_xent": Case("NT-Xent, {batch} x 2 views, width {dim}", _nt_xent, {"raysl/lightly": 1.0}),
    "nt_xent_large": Case(
        "NT-Xent, {large_batch:,} x 2 views, width {dim}", _large_nt_xent, most_mb=2000, is_timed=False
    ),
    "info_nce": Case("InfoNCE and its queue (MoCo), {batch} and {queue:,} keys", _info_nce, {"raysl/lightly": 1.0}),
    "sup_con": Case("SupCon, {batch} x 2 views, {classes:,} classes", _sup_con, {"raysl/plain": 1.0}),
    "dcl": Case("DCL, {batch} x 2 views, width {dim}", _dcl, {"raysl/lightly": 1.0}),
    "barlow_twins": Case("Barlow Twins, {batch} x 2 views, width {wide:,}", _barlow_twins, {"raysl/lightly": 1.0}),
    "vicreg": Case("VICReg, {batch} x 2 views, width {wide:,}", _vicreg, {"raysl/lightly": 1.0}),
    "dino": Case("DINO, {small_batch} x (2 + 8) views, {many_prototypes:,}", _dino, {"raysl/lightly": 1.0}),
    "swapped_prediction": Case(
        "swapped prediction and codes (SwAV), {batch} x 2 x {prototypes:,}", _swapped, {"raysl/lightly": 1.0}
    ),
    "sinkhorn": Case(
        "Sinkhorn-Knopp, {rows:,} x {prototypes:,}, 3 times",
        lambda sizes: _sinkhorn(sizes.rows, sizes.prototypes),
        {"raysl/plain": 1.2, "raysl/lightly": 1.0},
    ),
    "sinkhorn_large": Case(
        "Sinkhorn-Knopp, {batch} x {many_prototypes:,}, 3 times",
        lambda sizes: _sinkhorn(sizes.batch, sizes.many_prototypes),
        {"raysl/plain": 1.2, "raysl/lightly": 1.0},
    ),
    "kmeans": Case("k-means, {points:,} x {dim} to {centroids:,}, 2 rounds", _kmeans, {"raysl/faiss": 1.3}),
    "ema": Case("EMA of a ResNet-{depth}", _ema, {"raysl/plain": 1.1, "raysl/lightly": 1.0}),
}


def has_lightly() -> bool:
    """Return whether the peer is installed; it comes with the extra `dev`."""
    return find_spec("lightly") is not None


def _lightly(run: Callable[[Any, Tensor], Any], values: Tensor, name: str, **settings: Any) -> Contenders:
    """Return lightly's loss of some values, as `run` calls it, where lightly is installed."""
    if not has_lightly():
        return {}
    import lightly.loss

    return {"lightly": _both(partial(run, getattr(lightly.loss, name)(**settings)), values)}


def _of_pair(loss: Any, z: Tensor) -> Any:
    return loss(z[:, 0], z[:, 1])


def _both(loss: Callable[[Tensor], Tensor], values: Tensor) -> Callable[[], object]:
    """Run forward and backward over values that require a gradient."""
    leaf = values.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        loss(leaf).backward()  # type: ignore[no-untyped-call]

    return run


def _then(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        first()
        second()

    return run
