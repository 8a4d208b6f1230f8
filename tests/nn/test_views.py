from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.nn.views import ViewNorm, features_of_views, multi_crop
from tests.rank_processes import RunRanks


class Means(nn.Module):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[int]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shapes.append(list(images.shape))
        return images.mean(dim=(2, 3))  # [n, C]


def test_large_views_come_first_and_each_size_is_one_pass() -> None:
    views = {
        "local": torch.randn(4, 3, 2, 5, 5),
        "mine": torch.randn(4, 1, 2, 9, 9),
        "global": torch.randn(4, 2, 2, 8, 8),
    }
    network = Means()
    h = multi_crop(network, views)
    assert network.shapes == [[8, 2, 8, 8], [12, 2, 5, 5]]
    torch.testing.assert_close(h[:, :2], views["global"].mean(dim=(3, 4)))
    torch.testing.assert_close(h[:, 2:], views["local"].mean(dim=(3, 4)))


def test_one_group_alone_will_do() -> None:
    assert multi_crop(Means(), {"global": torch.randn(4, 2, 3, 8, 8)}).shape == (4, 2, 3)


SHARES = [4, 2]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normalised(images: Tensor) -> Tensor:
    """Batch normalisation, one channel after another."""
    channels = [(channel - channel.mean()) / (channel.var(correction=0) + 1e-5).sqrt() for channel in images.unbind(1)]
    return torch.stack(channels, dim=1)


def test_each_view_is_normalised_by_itself_or_all_together() -> None:
    views = numbers(6, 2, 3) * torch.tensor([1.0, 4.0])[:, None] + torch.tensor([0.0, 7.0])[:, None]
    network = nn.BatchNorm1d(3).double()
    alone = features_of_views(network, views, "per_view")
    torch.testing.assert_close(alone, torch.stack([normalised(views[:, 0]), normalised(views[:, 1])], dim=1))
    together = features_of_views(network, views, "joint")
    torch.testing.assert_close(together, normalised(views.flatten(0, 1)).view(6, 2, 3))


def test_running_statistics_track_one_view_after_the_other() -> None:
    views, network = numbers(6, 2, 3), nn.BatchNorm1d(3, momentum=0.25).double()
    features_of_views(network, views, "per_view")
    expected = 0.75 * (0.25 * views[:, 0].mean(dim=0)) + 0.25 * views[:, 1].mean(dim=0)
    torch.testing.assert_close(network.running_mean, expected)
    assert int(network.num_batches_tracked) == 2  # type: ignore[arg-type]


def features_and_gradient(batch_norm: ViewNorm) -> tuple[Tensor, Tensor]:
    shares = SHARES if dist.world() == 2 else [6]
    views = torch.split(numbers(6, 3, 4), shares)[dist.rank()].clone().requires_grad_()
    network = convert_sync_batch_norm(nn.BatchNorm1d(4).double())
    features = features_of_views(network, views, batch_norm)
    features.pow(3).sum().backward()
    assert views.grad is not None
    return features.detach(), views.grad


@pytest.mark.parametrize("batch_norm", ["per_view", "joint"])
def test_two_ranks_give_the_features_and_the_gradient_of_one(batch_norm: ViewNorm, run_ranks: RunRanks) -> None:
    features, gradient = features_and_gradient(batch_norm)
    ranks: list[Any] = run_ranks(2, features_and_gradient, batch_norm)
    torch.testing.assert_close(torch.cat([rows for rows, _ in ranks]), features, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.cat([grad for _, grad in ranks]), gradient, rtol=1e-9, atol=1e-12)
