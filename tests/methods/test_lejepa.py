from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import characteristic_sums, epps_pulley
from raysl.methods.lejepa import LeJEPA
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import Solarize

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/lejepa", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_lejepa(**fields: Any) -> LeJEPA:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return LeJEPA(setup, ResNet(setup.config.backbone)).double()


def whole_batch(step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    views = {
        "global": torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=generator),
        "local": torch.randn(NUM, 3, 3, 6, 6, dtype=torch.float64, generator=generator),
    }
    return Batch(views, torch.arange(NUM), torch.full((NUM,), -1), step=step)


def test_loss_is_algorithm_2() -> None:
    method, batch = small_lejepa(sigreg=0.3, num_slices=7), whole_batch()
    out = method(batch, STEP)
    h = [method.backbone(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in batch.views.values()]
    z = method.projector(torch.cat(h, dim=1).flatten(0, 1)).detach().unflatten(0, (NUM, 5))
    centres = (z[:, 0] + z[:, 1]) / 2
    invariance = sum(float((z[n, v] - centres[n]).square().mean()) for n in range(NUM) for v in range(5)) / (5 * NUM)
    normal = batch.shared("slices").normals_on(z.device, 5 * 7).view(5, 7)
    slices = normal / normal.norm(dim=0)
    t = torch.linspace(0, 3, 17, dtype=torch.float64)
    of_views = [epps_pulley(characteristic_sums(z[:, v] @ slices, t), NUM, t).mean() for v in range(5)]
    sigreg = float(sum(of_views)) / 5
    assert out.metrics["invariance"].item() == pytest.approx(invariance, rel=1e-6)
    assert out.metrics["sigreg"].item() == pytest.approx(sigreg, rel=1e-6)
    assert out.loss.item() == pytest.approx(0.7 * invariance + 0.3 * sigreg, rel=1e-6)
    assert tuple(out.metrics) == LeJEPA.logged


def test_directions_are_drawn_anew_in_each_step_and_again_after_a_restart() -> None:
    method = small_lejepa().eval()
    first, again, next_one = (method(whole_batch(step), STEP).metrics["sigreg"] for step in (3, 3, 4))
    assert first == again
    assert first != next_one


def test_embeddings_that_are_one_cost_more_than_normal_ones() -> None:
    method = small_lejepa()
    z = torch.randn(512, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    collapsed = method._sigreg(torch.zeros_like(z), whole_batch())
    assert method._sigreg(z, whole_batch()) < 2 < collapsed / 50


def test_views_are_the_authors() -> None:
    groups = load_config("lejepa", ["data.path=/images"]).method.views.recipe().groups
    assert {name: len(views) for name, views in groups.items()} == {"global": 2, "local": 6}
    large, small = groups["global"][0], groups["local"][0]
    assert (large.size, large.crop.scale, small.size, small.crop.scale) == (224, (0.3, 1.0), 98, (0.05, 0.3))
    assert large.transforms == small.transforms
    assert large.transforms[-1] == Solarize(p=0.2)


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [(1, 2, "one image has no distribution"), (NUM, 1, "LeJEPA compares views")],
)
def test_check_refuses_settings_without_views_or_a_distribution(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LeJEPA.check(setup_of(batch_size, **{"views.num": num}))
    LeJEPA.check(setup_of(2))
