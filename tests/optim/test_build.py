from itertools import pairwise

import pytest
import torch
from torch import nn

from raysl.errors import ConfigError
from raysl.optim.adam import AdamW
from raysl.optim.build import build_optimizer, lr_at, peak_lr
from raysl.optim.larc import LARC
from raysl.optim.lars import LARS
from raysl.optim.sgd import SGD
from raysl.schedule import Duration, Step
from tests.optim.probe import Probe


def test_the_name_picks_the_optimizer_and_the_groups_reach_it() -> None:
    assert isinstance(build_optimizer(Probe(), AdamW.Config()), AdamW)
    assert isinstance(build_optimizer(Probe(), LARC.Config()), LARC)
    lars = build_optimizer(Probe(), LARS.Config(weight_decay=0.1))
    assert isinstance(lars, LARS)
    assert [group["weight_decay"] for group in lars.param_groups] == [0.1, 0.0]
    assert [group["layer_scaling"] for group in lars.param_groups] == [True, False]
    sgd = build_optimizer(Probe(), SGD.Config(momentum=0.5, nesterov=True))
    assert isinstance(sgd, SGD)
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[1]["nesterov"]) == (0.5, True)
    with pytest.raises(ConfigError, match="unknown optimizer 'larz'; did you mean 'lars'"):
        build_optimizer(Probe(), SGD.Config(name="larz"))


def test_sgd_equals_its_definition() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    optimizer = SGD([{"params": [weight], "layer_scaling": True}], SGD.Config(lr=0.1, momentum=0.9, weight_decay=0.5))
    expected, moving = weight.detach().clone(), torch.zeros(1, 2, dtype=torch.float64)
    for step in range(3):
        weight.grad = torch.full_like(weight, step + 1.0)
        optimizer.step()
        moving = 0.9 * moving + (step + 1.0) + 0.5 * expected
        expected = expected - 0.1 * moving
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("scaling", "peak"), [("none", 0.3), ("linear", 4.8), ("sqrt", 1.2)])
def test_peak_grows_with_the_batch(scaling: str, peak: float) -> None:
    assert peak_lr(SGD.Config(lr=0.3, lr_scaling=scaling), batch_size=4096) == pytest.approx(peak)


def test_learning_rate_warms_up_then_falls_along_a_cosine() -> None:
    optim = SGD.Config(lr=0.5, lr_batch_size=256, warmup=Duration.parse("1ep"), final_lr=0.1)
    course = [lr_at(optim, Step(index, total=20, epoch_len=4), batch_size=512) for index in range(21)]
    assert course[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert course[12] == pytest.approx(0.55)
    assert course[20] == pytest.approx(0.1)
    assert all(after < before for before, after in pairwise(course[4:]))


def test_constant_schedule_stays_at_the_peak_after_the_warmup() -> None:
    optim = SGD.Config(lr=0.5, lr_scaling="none", schedule="constant", warmup=Duration.parse("2st"))
    assert [lr_at(optim, Step(index, 10, 5), 64) for index in (0, 1, 2, 9)] == pytest.approx([0.25, 0.5, 0.5, 0.5])
