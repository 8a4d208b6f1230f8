"""Losses that tell an image's own row of a memory bank from rows of noise."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


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


def _check_noise(rows: Tensor) -> None:
    if rows.shape[1] < 2:
        raise ValueError(f"rows {list(rows.shape)} contain no noise; give [B, 1 + K, D] with K of at least 1")


def _bank_logits(z: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return w . z / T for each row of the bank, [B, 1 + K]."""
    z = F.normalize(at_least_fp32(z), dim=-1)
    return torch.einsum("bkd,bd->bk", rows.to(z.dtype), z) / temperature
