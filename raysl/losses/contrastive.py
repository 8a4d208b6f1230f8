"""Contrastive losses: views of an image attract, other images repel."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.all_pairs import is_nearer, log_sum_exp
from raysl.losses.precision import at_least_fp32


def nt_xent(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1) -> Tensor:
    """Normalised temperature-scaled cross entropy (SimCLR, Chen et al. 2020, arXiv 2002.05709, eq. 1).

    Every view is an anchor. Its positives are the other views of its image, one term each; its negatives are all views
    of all other images of the batch. Mean over images, anchors and positives. Memory is linear in the batch.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two views each of two images, views alike
    >>> nt_xent(z, z_all=z, rows=torch.arange(2), temperature=1.0)  # log((e + 2) / e)
    tensor(0.5514)

    Args:
        z: embeddings of this rank's images [B, V, D], V >= 2; of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, V, D], N >= 2, this rank's among them.
        rows: int64 [B], indices of this rank's images in `z_all`.
        temperature: above 0.

    Raises:
        ValueError: if there are fewer than two views or images.
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)  # [B*V, D], [N*V, D], [B*V, V]
        against, positives = log_sum_exp(anchors / temperature, keys, same_image)  # [B*V], [B*V, V]
        terms = -F.logsigmoid(positives - against[:, None])  # [B*V, V]
        return _over_positives(terms.view(*z.shape[:2], z.shape[1]))


def sup_con(z: Tensor, z_all: Tensor, rows: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Contrast in which all views of a class are positives (SupCon, Khosla et al. 2020, arXiv 2004.11362, eq. 2).

    L_out: the sum over positives is outside the logarithm. Every view is an anchor i, which adds -1/|P(i)| times the
    sum over p in P(i) of log(exp(z_i . z_p / T) / sum over a in A(i) of exp(z_i . z_a / T)). A(i) are all other views
    of the batch, P(i) those with the label of i; for an unlabelled image, -1, P(i) are its own other views. Mean over
    images and anchors. Memory is linear in the batch.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> sup_con(z, z_all=z, rows=torch.arange(2), labels=torch.tensor([0, 1]), temperature=1.0)
    tensor(0.5514)

    Args:
        z: embeddings of this rank's images [B, V, D], V >= 2; of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, V, D], this rank's among them.
        rows: int64 [B], indices of this rank's images in `z_all`.
        labels: int64 [N], of the images of the whole batch; -1 for unlabelled images.
        temperature: above 0.

    Raises:
        ValueError: if there are fewer than two views.
    """
    num_images, num_views, _ = z_all.shape
    if num_views < 2:
        raise ValueError(f"contrast needs at least two views, got {num_views}")
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys = _unit(z).flatten(0, 1) / temperature, _unit(z_all).flatten(0, 1)  # [B*V, D], [N*V, D]
        itself = (rows[:, None] * num_views + torch.arange(num_views, device=rows.device)).view(-1, 1)  # [B*V, 1]
        log_sums, with_itself = log_sum_exp(anchors, keys, itself)  # [B*V], [B*V, 1]
        groups = _groups(labels)  # [N]
        # sums by label, so that no matrix of all pairs of embeddings is needed
        sums = keys.new_zeros(num_images, keys.shape[1]).index_add(0, groups, keys.view_as(z_all).sum(dim=1))  # [N, D]
        counts = keys.new_zeros(num_images).index_add(0, groups, keys.new_full((num_images,), num_views))  # [N]
        group = groups[rows].repeat_interleave(num_views)  # [B*V]
        positives = (anchors * sums[group]).sum(dim=1) - with_itself[:, 0]  # the sum of z_i . z_p / T, [B*V]
        return (log_sums - positives / (counts[group] - 1)).mean()


def dcl(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1, sigma: float | None = None) -> Tensor:
    """Decoupled contrast: `nt_xent` without the positive in its denominator (DCL, Yeh et al. 2021, arXiv 2110.06848,
    eq. 5 and 6).

    Each positive adds -w * z_i . z_p / T + log of the sum of exp(z_i . z_a / T) over all views a of other images. With
    `sigma` (DCLW) w is 2 - exp(z_i . z_p / sigma) / E[exp(z_i . z_p / sigma)], the mean over the batch's images at the
    same two views, so that pairs that are far apart weigh more; gradients flow through it. Arguments are those of
    `nt_xent`.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> dcl(z, z_all=z, rows=torch.arange(2), temperature=1.0)  # log(2) - 1
    tensor(-0.3069)
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)  # [B*V, D], [N*V, D], [B*V, V]
        against, positives = log_sum_exp(anchors / temperature, keys, same_image)  # [B*V], [B*V, V]
        positives = positives.view(*z.shape[:2], -1)  # [B, V, V], z_i . z_p / T
        weights: Tensor | float = 1.0
        if sigma is not None:
            z_all = _unit(z_all)
            concentrations = torch.einsum("nvd,nwd->nvw", z_all, z_all) / sigma  # [N, V, V]
            # the mean stays a logarithm, so that a small sigma does not overflow
            log_means = torch.logsumexp(concentrations, dim=0) - math.log(len(z_all))  # [V, V]
            weights = 2 - (positives * (temperature / sigma) - log_means).exp()  # [B, V, V]
        return _over_positives(against.view(*z.shape[:2], 1) - weights * positives)


@torch.no_grad()
def contrastive_accuracy(z: Tensor, z_all: Tensor, rows: Tensor) -> Tensor:
    """Share of (anchor, positive) pairs that are closer than the anchor is to any negative.

    Arguments are those of `nt_xent`.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> contrastive_accuracy(z, z_all=z, rows=torch.arange(2))
    tensor(1.)
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)
        return _over_positives(is_nearer(anchors, keys, same_image).float().view(*z.shape[:2], z.shape[1]))


def info_nce(q: Tensor, keys_pos: Tensor, queue: Tensor, temperature: float = 0.07) -> Tensor:
    """Cross entropy of picking a query's key among a queue of keys (MoCo, He et al. 2019, arXiv 1911.05722, eq. 1).

    Mean over queries. Gradients flow into all arguments that require them; the paper's keys and queue do not.

    >>> q, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> info_nce(q, keys_pos=q, queue=queue, temperature=1.0)  # log((e + 1) / e)
    tensor(0.3133)

    Args:
        q: queries [B, D]; of any length, they are normalised here.
        keys_pos: the key of each query [B, D]; normalised here too.
        queue: keys of other images [K, D], of length 1, as `raysl.nn.queue.Queue` holds them.
        temperature: above 0.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, keys_pos = _unit(q) / temperature, _unit(keys_pos)
        positives = (q * keys_pos).sum(dim=-1)  # [B]
        against = torch.logsumexp(q @ queue.to(q.dtype).T, dim=1)  # [B], of [B, K]
        return -F.logsigmoid(positives - against).mean()


def nce(z: Tensor, rows: Tensor, log_norm: Tensor, num_samples: int, temperature: float = 0.07) -> Tensor:
    """Noise-contrastive estimation of which image this is (NPID, Wu et al. 2018, arXiv 1805.01978, eq. 5 to 7).

    P(i | z) = exp(w_i . z / T) / Z is discriminated from noise that is uniform over the N images, Pn = 1/N, with K
    noise rows for each image: -log(P_0 / (P_0 + K Pn + eps)) - sum over k of log(K Pn / (P_k + K Pn + eps)). Mean over
    images. Computed in logarithms, so that no temperature overflows.

    >>> z, rows = torch.tensor([[1.0, 0.0]]), torch.eye(2)[None]  # its own row and one noise row
    >>> nce(z, rows, log_norm=torch.tensor(0.0), num_samples=2, temperature=1.0)  # log((e+1/2)/e) + log(3)
    tensor(1.2675)

    Args:
        z: embeddings [B, D]; of any length, they are normalised here.
        rows: rows of the memory bank [B, 1 + K, D], the image's own row first; of length 1, without gradient.
        log_norm: the logarithm of Z, a scalar tensor, set once from `nce_log_norm`.
        num_samples: N, the number of images in the bank.
        temperature: above 0.

    Raises:
        ValueError: if there are no noise rows.
    """
    _check_noise(rows)
    with torch.autocast(z.device.type, enabled=False):
        log_p = _bank_logits(z, rows, temperature) - log_norm  # [B, 1 + K]
        noise = (rows.shape[1] - 1) / num_samples
        log_noise = math.log(noise + torch.finfo(torch.float32).eps)
        # logsigmoid(a - b) is log(exp(a) / (exp(a) + exp(b))) without an overflow
        positive = -F.logsigmoid(log_p[:, 0] - log_noise)  # [B]
        negatives = (log_noise - math.log(noise)) - F.logsigmoid(log_noise - log_p[:, 1:])  # [B, K]
        return (positive + negatives.sum(dim=1)).mean()


def self_normalised_nce(z: Tensor, rows: Tensor, temperature: float = 0.07) -> Tensor:
    """`nce` with Z estimated from each image's own noise rows (PIRL, Misra and van der Maaten 2019, arXiv 1912.01991,
    eq. 3 and 4), in place of a constant.

    h(w) = exp(w . z / T) / (exp(w . z / T) + sum over noise rows n of exp(n . z / T)); -log h(own row) - sum over noise
    rows of log(1 - h(n)). Mean over images. Gradients flow through all of it. Arguments and errors are those of `nce`.

    >>> self_normalised_nce(torch.tensor([[1.0, 0.0]]), torch.eye(2)[None], temperature=1.0)  # log((e+1)/e) + log(2)
    tensor(1.0064)
    """
    _check_noise(rows)
    with torch.autocast(z.device.type, enabled=False):
        logits = _bank_logits(z, rows, temperature)  # [B, 1 + K]
        noise = torch.logsumexp(logits[:, 1:], dim=1, keepdim=True)  # [B, 1]
        positive = -F.logsigmoid(logits[:, :1] - noise)  # [B, 1]
        negatives = -F.logsigmoid(noise - logits[:, 1:])  # [B, K]
        return (positive + negatives.sum(dim=1, keepdim=True)).mean()


@torch.no_grad()
def nce_log_norm(z: Tensor, rows: Tensor, num_samples: int, temperature: float = 0.07) -> Tensor:
    """Estimate log Z from each image [B]: Z is N times the mean of exp(w . z / T) over all rows of the image.

    NPID takes the mean of Z over the first batch and keeps it (section 3.2, "Monte Carlo approximation"). Over ranks:
    `torch.logsumexp(dist.all_gather(values), 0) - math.log(batch_size)`. Arguments are those of `nce`.

    >>> nce_log_norm(torch.tensor([[1.0, 0.0]]), torch.eye(2)[None], num_samples=2, temperature=1.0)  # log(e + 1)
    tensor([1.3133])
    """
    with torch.autocast(z.device.type, enabled=False):
        logits = _bank_logits(z, rows, temperature)
        return torch.logsumexp(logits, dim=1) + math.log(num_samples / rows.shape[1])


def bank_cross_entropy(z: Tensor, rows: Tensor, temperature: float = 0.07) -> Tensor:
    """Cross entropy of picking an image's own row among 1 + K rows of a memory bank, VISSL's alternative to `nce`.

    Mean over images. Arguments are those of `nce`.

    >>> bank_cross_entropy(torch.tensor([[1.0, 0.0]]), torch.eye(2)[None], temperature=1.0)  # log((e + 1) / e)
    tensor(0.3133)
    """
    with torch.autocast(z.device.type, enabled=False):
        logits = _bank_logits(z, rows, temperature)  # [B, 1 + K]
        return (torch.logsumexp(logits, dim=1) - logits[:, 0]).mean()


def _pairs(z: Tensor, z_all: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors [B*V, D] and keys [N*V, D], of length 1, and the indices of each anchor's image among the keys,
    int64 [B*V, V]."""
    num_images, num_views, _ = z_all.shape
    if num_views < 2 or num_images < 2:
        raise ValueError(f"contrast needs at least two views and two images, got {num_views} and {num_images}")
    same_image = rows[:, None] * num_views + torch.arange(num_views, device=rows.device)  # [B, V]
    by_anchor = same_image[:, None].expand(-1, num_views, -1).flatten(0, 1)  # [B*V, V]
    return _unit(z).flatten(0, 1), _unit(z_all).flatten(0, 1), by_anchor


def _check_noise(rows: Tensor) -> None:
    if rows.shape[1] < 2:
        raise ValueError(f"rows {list(rows.shape)} contain no noise; give [B, 1 + K, D] with K of at least 1")


def _groups(labels: Tensor) -> Tensor:
    """Number the images [N] by label, from 0 to N - 1; each image without a label has a number of its own."""
    alone = -1 - torch.arange(len(labels), device=labels.device)
    labels = torch.where(labels >= 0, labels, alone)
    return torch.searchsorted(labels.sort().values, labels)


def _bank_logits(z: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return w . z / T for each row of the bank, [B, 1 + K]."""
    z = _unit(z)
    return torch.einsum("bkd,bd->bk", rows.to(z.dtype), z) / temperature


def _unit(z: Tensor) -> Tensor:
    return F.normalize(at_least_fp32(z), dim=-1)


def _over_positives(terms: Tensor) -> Tensor:
    """Return the mean of [B, V, V] without the diagonal, which pairs a view with itself."""
    num_views = terms.shape[-1]
    is_self = torch.eye(num_views, dtype=torch.bool, device=terms.device)
    return terms.masked_fill(is_self, 0.0).mean() * (num_views / (num_views - 1))
