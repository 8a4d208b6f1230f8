import math
from typing import Any

import pytest
import torch
from lightly.loss import VICRegLLoss
from torch import Tensor

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import spread
from raysl.methods.vicregl import TERMS, AlternatingCrops, Places, VICRegL
from raysl.nn.backbones.maps import features_and_map
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import covariances
from raysl.nn.places import place_centres
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import make_views
from raysl.transforms import GaussianBlur, HorizontalFlip, Solarize

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(*words: str, **fields: Any) -> Setup:
    settings = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.dim=8", "method.local_dim=5"]
    return Setup.of(load_config("digits/vicregl", [*small, f"train.batch_size={NUM}", *settings, *words]), NUM)


def small_vicregl(**fields: Any) -> VICRegL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return VICRegL(setup, ResNet(setup.config.backbone)).double()


def boxes(num_views: int, generator: torch.Generator) -> Tensor:
    """Boxes in images of 90x120, some mirrored, float64 [NUM, V, 6]."""
    corners = torch.rand(NUM, num_views, 2, 2, dtype=torch.float64, generator=generator)  # of either end: y, x
    size = torch.tensor([90.0, 120.0], dtype=torch.float64)
    return torch.cat([(corners * size).flatten(2), size.expand(NUM, num_views, 2)], dim=2)


def whole_batch(num_local: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views, extras = {}, {}
    for group, num, side in (("global", 2, 12), ("local", num_local, 8)):
        if num:
            views[group] = torch.randn(NUM, num, 3, side, side, dtype=torch.float64, generator=generator)
            extras[f"{group}.box"] = boxes(num, generator)
    return Batch(views, torch.arange(NUM), torch.full((NUM,), -1), extras=extras)


def embedded(method: VICRegL, batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each view: embeddings [B, D], those of its places [B, h, w, E] and their centres [B, h, w, 2]."""
    found = []
    for group in batch.views:
        for images, box in zip(batch.views[group].unbind(1), batch.extras[f"{group}.box"].unbind(1), strict=True):
            h, values = features_and_map(method.backbone, images, method.stage)
            rows = values.movedim(1, -1)
            z = method.local_expander(rows.flatten(0, 2)).view(*rows.shape[:3], -1)
            found.append((method.expander(h), z, place_centres(box, *values.shape[2:])))
    return found


def slow_vicreg(first: list[list[float]], second: list[list[float]]) -> Tensor:
    """VICReg's three terms of pairs of rows [B][D], the last two a mean over both sides, one number after another."""
    num, dim = len(first), len(first[0])
    terms = [0.0, 0.0, 0.0]
    for a, b in zip(first, second, strict=True):
        terms[0] += sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / (num * dim)
    for rows in (first, second):
        means = [sum(row[j] for row in rows) / num for j in range(dim)]
        for j in range(dim):
            for k in range(dim):
                c = sum((row[j] - means[j]) * (row[k] - means[k]) for row in rows) / (num - 1)
                if j == k:
                    terms[1] += max(0.0, 1 - math.sqrt(c + 1e-4)) / dim / 2
                else:
                    terms[2] += c**2 / dim / 2
    return torch.tensor(terms, dtype=torch.float64)


def slow_places(ours: Tensor, theirs: Tensor, where: Tensor, there: Tensor, num: int) -> Tensor:
    """The three terms of the places [B, P, E] of a view that are nearest to one of another by where they are, in the
    order of the places."""
    pairs = []
    for n in range(NUM):
        nearest = []
        for place, spot in enumerate(where[n]):
            away = [math.dist(spot.tolist(), other.tolist()) for other in there[n]]
            nearest.append((min(away), place, away.index(min(away))))
        best = sorted((one, other) for _, one, other in sorted(nearest)[:num])
        pairs.append([(ours[n, one].tolist(), theirs[n, other].tolist()) for one, other in best])
    slots = [slow_vicreg([p[m][0] for p in pairs], [p[m][1] for p in pairs]) for m in range(len(pairs[0]))]
    return torch.stack(slots).mean(dim=0)


@pytest.mark.thorough
def test_loss_is_the_sum_of_section_3() -> None:
    weights = {"invariance": 2.0, "variance": 3.0, "covariance": 5.0}
    method = small_vicregl(alpha=0.3, num_matches=[4, 2], **weights)
    batch = whole_batch(num_local=2)
    out = method(batch, STEP)
    views = [(z, places.flatten(1, 2), centres.flatten(1, 2)) for z, places, centres in embedded(method, batch)]
    of_images, of_places = [], []
    for i in range(2):
        for j in range(4):
            if i == j:
                continue
            of_images.append(slow_vicreg(views[i][0].tolist(), views[j][0].tolist())[0])
            for by in (1, 2):  # embeddings, centres
                there = slow_places(views[i][1], views[j][1], views[i][by], views[j][by], 4)
                back = slow_places(views[j][1], views[i][1], views[j][by], views[i][by], 2)
                of_places.append((there + back) / 2)
    spreads = torch.stack([slow_vicreg(z.tolist(), z.tolist())[1:] for z, *_ in views]).mean(dim=0)
    images = torch.stack([torch.stack(of_images).mean(), *spreads])
    places = torch.stack(of_places).mean(dim=0) * 2  # a mean over pairs of views, a sum over both ways to match
    expected = (0.3 * images + 0.7 * places) @ torch.tensor(list(weights.values()), dtype=torch.float64)
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-9)
    assert tuple(out.metrics) == VICRegL.logged
    found = [out.metrics[name].item() for name in VICRegL.logged[:6]]
    assert found == pytest.approx([*images.tolist(), *places.tolist()], rel=1e-9)


def test_the_pairs_of_two_views_are_lightlys() -> None:
    """lightly's variances and covariances are of pairs in the order of their distances, not of the places."""
    method, batch = small_vicregl(num_matches=[5, 3], variance=0, covariance=0), whole_batch()
    peer = VICRegLLoss(mu_param=0, nu_param=0, num_matches=(5, 3))
    views = embedded(method, batch)
    expected = peer([(z, places) for z, places, _ in views], [centres for *_, centres in views])
    assert method(batch, STEP).loss.item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_authors_code_matches_all_places_by_features() -> None:
    torch.manual_seed(1)
    views = [Places(torch.randn(NUM, 9, 5).double(), torch.rand(NUM, 9, 2).double()) for _ in range(2)]
    peers = [VICRegLLoss(mu_param=0, nu_param=0, num_matches=num) for num in ((9, 9), (4, 2))]
    maps = [view.z.unflatten(1, (3, 3)) for view in views]
    grids = [view.centres.unflatten(1, (3, 3)) for view in views]
    expected = peers[0]._local_l2_loss(*maps) + peers[1]._local_location_loss(*maps, *grids)
    terms = small_vicregl(num_matches=[4, 2], match_all_features=True)._of_pair(*views)
    assert 25 * terms[0].item() == pytest.approx(expected.item(), rel=1e-9)


def test_places_are_matched_where_the_same_part_of_the_image_is_seen() -> None:
    """A view and its mirror image have the same places in another order, so that pairs by location agree."""
    method = small_vicregl(num_matches=[9, 9])
    z = torch.randn(NUM, 3, 3, 5, dtype=torch.float64)
    box = torch.tensor([10.0, 20.0, 40.0, 80.0, 90.0, 120.0], dtype=torch.float64).expand(NUM, 6)
    mirrored = box[:, [0, 3, 2, 1, 4, 5]]
    first, second = (place_centres(b, 3, 3).flatten(1, 2) for b in (box, mirrored))
    same = method._of_pair(Places(z.flatten(1, 2), first), Places(z.flip(2).flatten(1, 2), second))
    other = method._of_pair(Places(z.flatten(1, 2), first), Places(z.flip(2).flatten(1, 2), first))
    assert same[0] == 0
    assert other[0] > 0.1


def test_spread_is_that_of_each_matrix() -> None:
    z = torch.randn(7, 3, 4, dtype=torch.float64)
    matrices = covariances(z)
    hinges, squares = spread(torch.stack(matrices))
    for view in range(3):
        _, hinge, square = slow_vicreg(z[:, view].tolist(), z[:, view].tolist()).tolist()
        assert (hinges[view].item(), squares[view].item()) == pytest.approx((hinge, square), rel=1e-9)


def test_small_views_alternate_as_large_ones_do() -> None:
    groups = AlternatingCrops(num_local=3, min_scale=0.4).recipe().groups
    chains = [[type(transform) for transform in view.transforms] for view in groups["local"]]
    assert [GaussianBlur in chain for chain in chains] == [True, True, True]
    assert [Solarize in chain for chain in chains] == [False, True, False]
    assert groups["global"][1].transforms == groups["local"][1].transforms


def test_all_views_have_boxes_and_turned_ones_are_refused() -> None:
    setup = setup_of("method.views.num_local=2")
    groups = make_views(setup, Classes.of(setup.config)).groups
    assert [view.box for views in groups.values() for view in views] == [True] * 4
    assert HorizontalFlip not in [type(t) for t in groups["global"][0].transforms]  # digits have no mirror images
    turned = setup_of("method.views.affine_p=0.5")
    with pytest.raises(ConfigError, match=r"method\.views: an affine map turns, shifts or stretches views"):
        make_views(turned, Classes.of(turned.config))


def test_check_refuses_other_numbers_of_large_views_and_unknown_stages() -> None:
    with pytest.raises(ConfigError, match=r"method\.views\.num is 3; VICRegL compares two large views"):
        VICRegL.check(setup_of("method.views.num=3"))
    with pytest.raises(ConfigError, match=r"method\.stage is 'res9'; the stages of the backbone are"):
        VICRegL.check(setup_of(stage="res9"))
    VICRegL.check(setup_of())


def test_layer_normalisation_has_biases_in_front() -> None:
    layers = small_vicregl(norm="layer").local_expander
    assert [type(layer).__name__ for layer in layers] == ["Linear", "LayerNorm", "ReLU"] * 2 + ["Linear"]
    assert [layers[place].bias is not None for place in (0, 3, 6)] == [True, True, False]
    assert VICRegL.logged[:3] == TERMS
