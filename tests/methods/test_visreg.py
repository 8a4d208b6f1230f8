from statistics import NormalDist
from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import visreg
from raysl.methods.visreg import VISReg
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import Solarize

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/visreg", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_visreg(**fields: Any) -> VISReg:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return VISReg(setup, ResNet(setup.config.backbone)).double()


def whole_batch(step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {
        "global": torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=generator),
        "local": torch.randn(NUM, 3, 3, 6, 6, dtype=torch.float64, generator=generator),
    }
    return Batch(views, torch.arange(NUM), torch.full((NUM,), -1), step=step)


def test_loss_is_the_sum_of_agreement_and_three_terms_of_each_view() -> None:
    method = small_visreg(regularization=0.7, centre=0.5, scale=2, shape=3, num_slices=7, eps=0.01)
    batch = whole_batch()
    out = method(batch, STEP)
    # backbone and projector see large and small views in passes of their own
    z = torch.cat(
        [
            method.projector(method.backbone(group.flatten(0, 1))).unflatten(0, group.shape[:2])
            for group in batch.views.values()
        ],
        dim=1,
    ).detach()
    centres = (z[:, 0] + z[:, 1]) / 2
    invariance = sum(float((z[n, v] - centres[n]).square().mean()) for n in range(NUM) for v in range(5)) / (5 * NUM)
    normal = batch.shared("slices").normals_on(z.device, 5 * 7).view(5, 7)
    slices = (normal / normal.norm(dim=0)).double()
    quantiles = torch.tensor([NormalDist().inv_cdf(n / (NUM + 1)) for n in range(1, NUM + 1)], dtype=torch.float64)
    centre = scale = shape = 0.0
    for view in z.unbind(dim=1):
        mean = view.mean(dim=0)
        std = ((view - mean) ** 2).mean(dim=0).sqrt() + 0.01
        centre += float((mean**2).mean()) / 5
        scale += float(((std - 1) ** 2).mean()) / 5
        for direction in slices.T:
            shape += float(((((view - mean) / std) @ direction).sort().values - quantiles).square().mean()) / (5 * 7)
    for name, expected in {"invariance": invariance, "centre": centre, "scale": scale, "shape": shape}.items():
        assert out.metrics[name].item() == pytest.approx(expected, rel=1e-6), name
    regularization = 0.5 * centre + 2 * scale + 3 * shape
    assert out.loss.item() == pytest.approx(0.3 * invariance + 0.7 * regularization, rel=1e-6)
    assert tuple(out.metrics) == VISReg.logged


def test_directions_are_drawn_anew_in_each_step_and_again_after_a_restart() -> None:
    method = small_visreg().eval()
    first, again, next_one = (method(whole_batch(step), STEP).metrics["shape"] for step in (3, 3, 4))
    assert first == again
    assert first != next_one


def test_embeddings_that_are_one_cost_more_than_normal_ones() -> None:
    method = small_visreg()
    z = torch.randn(512, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slices = method._slices(z, whole_batch())
    assert slices.norm(dim=0).sub(1).abs().max() < 1e-6
    assert float(sum(visreg(z, slices))) < 0.05
    assert float(sum(visreg(torch.zeros_like(z), slices))) > 1.9
    assert float(visreg(torch.full_like(z, 2.0), slices).centre) == pytest.approx(4)


def test_views_are_the_authors() -> None:
    groups = load_config("visreg", ["data.path=/images"]).method.views.recipe().groups
    assert {name: len(views) for name, views in groups.items()} == {"global": 4, "local": 6}
    large, small = groups["global"][0], groups["local"][0]
    assert (large.size, large.crop.scale, small.size, small.crop.scale) == (224, (0.3, 1.0), 96, (0.05, 0.3))
    assert large.transforms == small.transforms
    assert large.transforms[-1] == Solarize(p=0.2)


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [(1, 2, "one image has no distribution"), (NUM, 1, "VISReg compares views")],
)
def test_check_refuses_settings_without_views_or_a_distribution(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VISReg.check(setup_of(batch_size, **{"views.num": num}))
    VISReg.check(setup_of(2))
