import torch
from torch import Tensor, nn

from raysl.nn.views import multi_crop


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
