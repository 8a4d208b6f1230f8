"""Batch normalisation of each worker's rows that tells nothing of whose views lie together."""

import torch
from torch import Tensor, nn

from raysl import dist
from raysl.data.batch import Batch


@torch.no_grad()
def in_shuffled_order(network: nn.Module, images: Tensor, batch: Batch, slot: str) -> Tensor:
    """What a network gives for images, each normalised with other ones than those of its rank (MoCo, arXiv 1911.05722,
    section 3.3, "Shuffling BN").

    All ranks' images change places, pass through the network, and go back.

    Args:
        network: a teacher, whose outputs need no gradients.
        images: [B, ...] of this rank.
        batch: whose step the order is drawn for.
        slot: what the draw is for; another one has another order.

    Returns:
        Outputs [B, ...] of this rank's images.
    """
    everyone, own = dist.all_gather(images), dist.own_rows(images)  # [N, ...], [B]
    drawn = batch.shared(slot).permutation(len(everyone))[0]
    order = torch.from_numpy(drawn).to(images.device, non_blocking=True)  # [N], who is at a place
    outputs: Tensor = network(everyone[order[own]])
    return dist.all_gather(outputs)[torch.argsort(order)[own]]
