"""Losses on classes, and how often the right class is predicted."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn labels int64 [B] into distributions [B, num_classes]; unlabelled rows, -1, become zeros.

    >>> one_hot(torch.tensor([1, -1]), num_classes=3)
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    """
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


def smoothed(targets: Tensor, share: float) -> Tensor:
    """Smooth distributions [..., K]: a share is spread over all K classes; zeros stay zeros.

    >>> smoothed(torch.tensor([1.0, 0.0]), share=0.1)
    tensor([0.9500, 0.0500])

    Szegedy et al. 2015 (arXiv 1512.00567), section 7: q'(k) = (1 - share) q(k) + share / K.
    """
    return (1 - share) * targets + share / targets.shape[-1] * targets.sum(dim=-1, keepdim=True)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with distributions over classes, mean over rows; a target of zeros counts as a row of loss 0.

    >>> soft_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0]]))  # log 4
    tensor(1.3863)

    Args:
        logits: [..., K].
        targets: [..., K], broadcast to the shape of the logits; no gradient flows into them.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = at_least_fp32(logits)
        log_p = F.log_softmax(logits, dim=-1)
        return -(targets.detach().to(log_p.dtype) * log_p).sum(dim=-1).mean()


def soft_binary_cross_entropy(logits: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """Binary cross entropy per class, mean over rows and classes; a class neither present nor absent counts 0.

    >>> present = torch.tensor([[1.0, 0.0]])
    >>> soft_binary_cross_entropy(torch.zeros(1, 2), present, absent=1 - present)  # log 2
    tensor(0.6931)

    Args:
        logits: [..., K].
        present, absent: shares in [0, 1], broadcast to the shape of the logits; no gradient flows into them.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = at_least_fp32(logits)
        present, absent = (share.detach().to(logits.dtype) for share in (present, absent))
        return -(present * F.logsigmoid(logits) + absent * F.logsigmoid(-logits)).mean()


@torch.no_grad()
def top_share(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """Return the largest target among the k classes of highest score [...]: with one-hot targets, the top-k accuracy.

    >>> top_share(torch.tensor([[0.1, 0.9, 0.5]]), one_hot(torch.tensor([2]), 3), k=2)
    tensor([1.])

    Args:
        logits: [..., K].
        targets: [..., K], broadcast to the shape of the logits.
        k: number of classes that count, at most K.
    """
    classes = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return targets.expand_as(logits).gather(-1, classes).amax(dim=-1)
