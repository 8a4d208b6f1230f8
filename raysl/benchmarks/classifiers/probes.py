"""Many linear classifiers at once: every learning rate and weight decay of a grid in one pass over the features.

The classifiers see the same batches, so their weights stand below one another in one matrix [G K, D], and a step of all
of them is two matrix products: a row for each class and a column for each image is what a CPU multiplies fastest where
classes are few. Each is trained as if alone: its own momentum, its own learning rate, its own decay.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.benchmarks.classifiers.scaling import Scaling, chunks_of, device_for, rows_of, softmax
from raysl.hashing import hash_words, permutation
from raysl.schedule import cosine

_ORDER = 102  # part of random keys


@dataclass(frozen=True)
class Setting:
    """Learning rate and weight decay of one classifier.

    Args:
        lr: learning rate at a batch of 256 images; that of other batches is in proportion.
        weight_decay: decay of weights and biases, added to the gradient.
    """

    lr: float
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Length:
    """Number of updates of a training, and their batch and momentum.

    Args:
        epochs: passes over the images.
        batch_size: images of an update; those of an epoch are spread evenly, so that some have one less.
        min_updates: epochs are added until there are as many.
    """

    epochs: int
    batch_size: int
    min_updates: int = 0
    momentum: float = 0.9

    def batches(self, num_rows: int, seed: int) -> Iterator[Tensor]:
        """Yield the rows of each update; each epoch has all rows once, in a new order."""
        per_epoch = -(-num_rows // self.batch_size)
        for epoch in range(self.num_updates(num_rows) // per_epoch):
            order = torch.from_numpy(permutation(num_rows, hash_words(_ORDER, seed, epoch)))
            yield from torch.tensor_split(order, per_epoch)

    def num_updates(self, num_rows: int) -> int:
        """Number of updates over all epochs."""
        per_epoch = -(-num_rows // self.batch_size)
        return per_epoch * max(self.epochs, -(-self.min_updates // per_epoch))


@dataclass(frozen=True)
class Probes:
    """Linear classifiers of the same features.

    Args:
        weight: [G K, D].
        bias: [G K].
    """

    weight: Tensor
    bias: Tensor
    num_classes: int
    scaling: Scaling

    def logits(self, rows: Tensor) -> Tensor:
        """Return scores [B, G, K] of unscaled features [B, D]."""
        scores = torch.addmm(self.bias[:, None], self.weight, self.scaling(rows).T)  # [G K, B]
        return scores.view(-1, self.num_classes, len(rows)).permute(2, 0, 1)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of all classifiers, float32 [N, G, K] on the CPU, for features [N, D] in chunks."""
        chunks = chunks_of(features, torch.arange(len(features)), self.weight.device)
        return torch.cat([self.logits(rows).float().cpu() for _, rows in chunks])

    @torch.no_grad()
    def measure(self, features: Tensor, labels: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return share of hits and mean cross entropy of each classifier, both float64 [G], on some rows of features
        [N, D]."""
        device = self.weight.device
        hits = losses = torch.zeros(len(self.weight) // self.num_classes, dtype=torch.float64, device=device)
        for part, rows in chunks_of(features, index, device):
            target = labels[part.to(labels.device)].to(device)[:, None]  # [B, 1]
            logits = self.logits(rows)
            hits = hits + (logits.argmax(dim=2) == target).sum(dim=0)
            named = logits.gather(2, target[..., None].expand(-1, logits.shape[1], 1))[..., 0]
            losses = losses + (logits.logsumexp(dim=2) - named).double().sum(dim=0)
        return (hits / len(index)).cpu(), (losses / len(index)).cpu()


@torch.no_grad()
def train_probes(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_classes: int,
    settings: Sequence[Setting],
    scaling: Scaling,
    length: Length,
    seed: int,
) -> Probes:
    """Train a linear classifier with each of the settings by SGD, from zero weights, with cosine learning rates.

    The loss is convex, so that zero weights are as good a start as any, and nothing random is in it but the order.

    Args:
        features: [N, D], maybe mapped into memory: a batch at a time is read.
        labels: int64 [N].
        index: int64 [M], places of the rows that are trained on.
        settings: one for each of G classifiers.
    """
    device, width = device_for(features), len(settings) * num_classes
    dtype = rows_of(features, index[:1], device).dtype

    def rows_for(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device).repeat_interleave(num_classes)[:, None]

    weight = torch.zeros(width, features.shape[1], dtype=dtype, device=device)
    bias = torch.zeros(width, 1, dtype=dtype, device=device)
    velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    rate, decay = rows_for([setting.lr for setting in settings]), rows_for([s.weight_decay for s in settings])
    has_decay, num_updates = bool(decay.any()), length.num_updates(len(index))
    for update, batch in enumerate(length.batches(len(index), seed)):
        rows = index[batch]
        x = scaling.in_training(rows_of(features, rows, device))
        # softmax minus one-hot is the gradient of the cross entropy by the logits
        share, _ = softmax(torch.addmm(bias, weight, x.T).view(-1, num_classes, len(x)))  # [G, K, B]
        share[:, labels[rows.to(labels.device)].to(device), torch.arange(len(x), device=device)] -= 1
        error = share.div_(len(x)).flatten(0, 1)  # gradient by the logits [G K, B]
        torch.addmm(velocity, error, x, beta=length.momentum, out=velocity)
        bias_velocity.mul_(length.momentum).add_(error.sum(dim=1, keepdim=True))
        if has_decay:
            velocity.addcmul_(weight, decay)
            bias_velocity.addcmul_(bias, decay)
        # rates are for 256 images; a smaller batch keeps the rate of a full one
        now = cosine(update / num_updates, 1.0, 0.0) * length.batch_size / 256
        weight.addcmul_(velocity, rate, value=-now)
        bias.addcmul_(bias_velocity, rate, value=-now)
    return Probes(weight, bias[:, 0], num_classes, scaling)


def best_of(shares: Tensor, losses: Tensor) -> int | None:
    """Return the number of the classifier with the most hits, and among equals with the least loss; None if no loss is
    finite.

    Args:
        shares, losses: float64 [G]; a loss that is not finite is that of weights that grew without bound.
    """
    order = [
        (share, -loss, -number)
        for number, (share, loss) in enumerate(zip(shares.tolist(), losses.tolist(), strict=True))
        if math.isfinite(loss)
    ]
    return -max(order)[2] if order else None
