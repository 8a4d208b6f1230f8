"""The type that losses are computed in."""

import torch
from torch import Tensor


def at_least_fp32(values: Tensor) -> Tensor:
    """Half types as float32, others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
