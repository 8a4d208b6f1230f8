"""Shuffled batch normalisation: statistics of a worker's rows whose images are drawn from all workers."""

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.batch import Batch


@torch.no_grad()
def in_shuffled_order(network: nn.Module, images: Tensor, batch: Batch, slot: str) -> Tensor:
    """Outputs for this rank's images, each normalised together with images of all ranks (MoCo, arXiv 1911.05722,
    section 3.3, "Shuffling BN").

    The images of all ranks are shuffled among them, pass through the network, and the outputs are put back in order.

    Args:
        network: a teacher, whose outputs need no gradients.
        images: [B, ...] of this rank.
        batch: of the step; the order is a function of the seed, the step and `slot`.
        slot: name of the draw.

    Returns:
        Outputs [B, ...] of this rank's images.
    """
    everyone, local_rows = dist.all_gather(images), dist.own_rows(images)  # [N, ...], [B]
    drawn = batch.shared(slot).permutation(len(everyone))[0]
    order = torch.from_numpy(drawn).to(images.device, non_blocking=True)  # [N], the image at each position
    outputs: Tensor = network(everyone[order[local_rows]])
    return dist.all_gather(outputs)[torch.argsort(order)[local_rows]]
