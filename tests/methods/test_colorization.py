import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.colorization import Colorization, gamut_bins, rebalancing, soft_encoding
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.functional_color import to_lab

STEP = Step(0, 10, 5)
RESNET = ("backbone.stem=cifar", "backbone.num_stages=2", "backbone.width=4")
VIT = ("backbone={name: vit, size: nano, depth: 2, width: 12, heads: 2, patch_size: 4, image_size: 8}",)


def setup_of(*words: str) -> Setup:
    views = ["method.cells=1", "method.views.size=8", "data.image_size=8", "train.batch_size=3"]
    return Setup.of(load_config("digits/colorization", [*views, *words]), 6)


def small(*words: str) -> Colorization:
    torch.manual_seed(0)
    setup = setup_of(*(words or RESNET))
    Colorization.check(setup)
    network: Any = ViT if setup.config.backbone.name == "vit" else ResNet
    method = Colorization(setup, network(setup.config.backbone)).double().eval()
    method.class_weights.copy_(torch.rand(len(method.bins), generator=torch.Generator().manual_seed(2)) + 0.5)
    return method


def pixels(num: int = 3) -> Tensor:
    return torch.randint(0, 256, (num, 3, 8, 8), generator=torch.Generator().manual_seed(1)).double() / 255


def batch_of(method: Colorization, images: Tensor, group: str = "global") -> Batch:
    return Batch({group: ((images - method.mean) / method.std)[:, None]}, torch.arange(len(images)), torch.arange(2))


def cells_of(image: Tensor, side: int) -> list[list[Tensor]]:
    """The mean a and b of each place of a grid over an image."""
    ab = to_lab(image[None])[0, 1:] * 255 - 128
    step = 8 // side
    return [
        [ab[:, i * step : (i + 1) * step, j * step : (j + 1) * step].mean(dim=(1, 2)) for j in range(side)]
        for i in range(side)
    ]


def shares_of(color: Tensor, bins: Tensor) -> dict[int, float]:
    """Of the five bins next to a colour, the nearest first."""
    near = sorted((math.dist(color.tolist(), center), place) for place, center in enumerate(bins.tolist()))[:5]
    total = sum(math.exp(-(distance**2) / 50) for distance, _ in near)
    return {place: math.exp(-(distance**2) / 50) / total for distance, place in near}


@pytest.mark.thorough
def test_bins_are_the_grid_points_next_to_a_color() -> None:
    bins = gamut_bins()
    assert len(bins) == 261
    assert torch.equal(bins % 10, torch.zeros_like(bins))
    assert [bins[:, 0].min(), bins[:, 0].max(), bins[:, 1].min(), bins[:, 1].max()] == [-90, 100, -110, 90]
    colors = torch.rand(1, 3, 100, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ab = (to_lab(colors)[0, 1:] * 255 - 128).flatten(1).T
    known = {tuple(center) for center in bins.tolist()}
    assert {tuple(center) for center in ((ab / 10).round() * 10 + 0.0).tolist()} <= known


def test_a_color_is_shared_by_the_five_bins_next_to_it() -> None:
    bins = gamut_bins()
    colors = torch.tensor([[3.0, -4.0], [98.0, -57.0], [0.2, 0.1]], dtype=torch.float64)
    places, shares = soft_encoding(colors, bins, 5, 5.0)
    for row, color in enumerate(colors):
        expected = shares_of(color, bins)
        assert places[row].tolist() == list(expected)
        assert shares[row].tolist() == pytest.approx(list(expected.values()))


def test_rare_colors_weigh_more_and_the_mean_weight_of_colors_is_1() -> None:
    bins = torch.tensor([[0.0, 0.0], [0.0, 10.0], [50.0, 0.0]])
    counts = torch.tensor([90, 9, 1])
    near = math.exp(-100 / 50)
    prior = torch.tensor([90 + 9 * near, 9 + 90 * near, 1.0], dtype=torch.float64)
    prior = prior / prior.sum()  # 50 apart is no neighbour
    weights = 1 / (0.5 * prior + 0.5 / 3)
    expected = weights / (prior * weights).sum()
    torch.testing.assert_close(rebalancing(counts, bins, 0.5, 5.0), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(rebalancing(counts, bins, 1.0, 5.0), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(("words", "side"), [(RESNET, 4), (VIT, 2), ((*VIT, "method.cells=2"), 4)])
def test_loss_is_the_weighed_cross_entropy_of_each_place(words: tuple[str, ...], side: int) -> None:
    method, images = small(*words), pixels()
    seen: list[Tensor] = []
    method.classifier.register_forward_hook(lambda _, __, out: seen.append(out))
    out = method(batch_of(method, images), STEP)
    scores = F.pixel_shuffle(seen[0], method.config.cells)  # [N, Q, h, w]
    assert scores.shape == (3, 261, side, side)
    total = 0.0
    for image in range(3):
        for i, row in enumerate(cells_of(images[image], side)):
            for j, color in enumerate(row):
                log_p = F.log_softmax(scores[image, :, i, j], dim=0)
                shares = shares_of(color, method.bins)
                weight = method.class_weights[next(iter(shares))].item()
                total -= weight * sum(share * log_p[place].item() for place, share in shares.items())
    assert out.loss.item() == pytest.approx(total / (3 * side**2), rel=1e-9)
    assert tuple(out.metrics) == Colorization.logged


def test_the_backbone_sees_lightness_alone() -> None:
    method, images = small(), pixels()
    seen: list[Tensor] = []
    method.backbone.get_submodule("conv1").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    method(batch_of(method, images), STEP)
    lightness = to_lab(images)[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(seen[0] * method.std + method.mean, lightness, rtol=0, atol=1e-6)


def test_bins_are_weighed_by_the_training_images_before_the_first_epoch_alone() -> None:
    method, images = small(), pixels()
    before = method.class_weights.clone()
    batches = [batch_of(method, part, "image") for part in images.split([1, 2])]
    method.before_epoch(Step(5, 10, 5), lambda: iter(batches))
    assert torch.equal(method.class_weights, before)
    method.before_epoch(STEP, lambda: iter(batches))
    counts = torch.zeros(261)
    for image in images:
        for color in (color for row in cells_of(image, 4) for color in row):
            counts[next(iter(shares_of(color, method.bins)))] += 1
    torch.testing.assert_close(method.class_weights, rebalancing(counts, method.bins, 0.5, 5.0))
    even = small(*RESNET, "method.rebalancing=1")
    even.class_weights.fill_(1)
    even.before_epoch(STEP, lambda: iter(batches))
    assert torch.equal(even.class_weights, torch.ones(261))


def test_evaluation_tells_how_many_places_are_right_and_how_far_the_others_are() -> None:
    method = small()
    gray = (method.bins == 0).all(dim=1).nonzero().item()
    torch.nn.init.zeros_(method.classifier.weight)
    method.classifier.bias.data = torch.full((261,), -1e3).double()
    method.classifier.bias.data[gray] = 0.0  # says "grey" of every place
    images = pixels(2)
    images[0] = 0.5
    found = method.evaluation_step(batch_of(method, images))
    assert tuple(found) == Colorization.evaluated
    colors = [color for row in cells_of(images[1], 4) for color in row]
    assert found["color_error"][0] < 0.01
    assert found["color_error"][1].item() == pytest.approx(sum(color.norm().item() for color in colors) / 16)
    hits = [next(iter(shares_of(color, method.bins))) == gray for color in colors]
    assert found["color_top1"].tolist() == [100, pytest.approx(100 * sum(hits) / 16)]


def test_images_of_one_color_leave_the_loss_finite() -> None:
    method = small().train()
    for level in (0.0, 1.0):
        out = method(batch_of(method, torch.full((3, 3, 8, 8), level).double()), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_networks_without_a_map_that_fits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"views of 10 pixels are not covered by patches of 4; .*data.image_size=12"):
        Colorization.check(setup_of(*VIT, "method.views.size=10", "data.image_size=10"))


def test_numbers_and_views_are_the_papers() -> None:
    config: Any = Colorization.Config()
    assert (config.rebalancing, config.neighbours, config.sigma) == (0.5, 5, 5.0)
    (view,) = config.views.recipe().groups["global"]
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
