"""Losses on classes, and how often the right one is named."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Labels int64 [B] as distributions [B, num_classes]; of unlabelled rows, -1, all zeros."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


def smoothed(targets: Tensor, share: float) -> Tensor:
    """Distributions [..., K] of which a share is spread over all K classes; zeros stay zeros.

    Szegedy et al. 2015 (arXiv 1512.00567), section 7: q'(k) = (1 - share) q(k) + share / K.
    """
    return (1 - share) * targets + share / targets.shape[-1] * targets.sum(dim=-1, keepdim=True)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with distributions over classes, mean over rows; a target of zeros counts as a row of loss 0.

    Args:
        logits: [..., K].
        targets: [..., K], of a shape that spreads to that of the logits; no gradient flows into them.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = at_least_fp32(logits)
        log_p = F.log_softmax(logits, dim=-1)
        return -(targets.detach().to(log_p.dtype) * log_p).sum(dim=-1).mean()


def soft_binary_cross_entropy(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """A yes or no for each class, mean over rows and classes; one that is neither present nor absent counts 0.

    Args:
        logits: [..., K].
        present, absent: shares in [0, 1] of what spreads to the shape of the logits; no gradient flows into them.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = at_least_fp32(logits)
        present, absent = (share.detach().to(logits.dtype) for share in (present, absent))
        return -(present * F.logsigmoid(logits) + absent * F.logsigmoid(-logits)).mean()


@torch.no_grad()
def top_share(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """The largest target among the k classes of highest score [...]: with one-hot targets, whether it is one of them.

    Args:
        logits: [..., K].
        targets: [..., K], of a shape that spreads to that of the logits.
        k: of K classes, all where there are fewer.
    """
    places = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return targets.expand_as(logits).gather(-1, places).amax(dim=-1)
