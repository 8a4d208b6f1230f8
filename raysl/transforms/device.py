"""Numbers of the host on their way to the device of images."""

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device; from the host to a GPU through pinned memory, while the host goes on."""
    is_pinned = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory().to(device, non_blocking=True) if is_pinned else values.to(device)


def to_type_of(values: Tensor, other: Tensor) -> Tensor:
    """Copy values to the device and the type of another tensor, as `to_device` does."""
    return to_device(values.to(other.dtype), other.device)
