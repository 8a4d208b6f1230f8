"""The precision that losses are computed in."""

import torch
from torch import Tensor


def at_least_fp32(values: Tensor) -> Tensor:
    """Convert half precision to float32; other types stay.

    >>> at_least_fp32(torch.zeros(2, dtype=torch.bfloat16)).dtype, at_least_fp32(torch.zeros(2).double()).dtype
    (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))
