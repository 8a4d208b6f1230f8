import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.methods.msn import MSN
from raysl.nn.backbones.vit import ViT
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step

NUM_ANCHORS = 3  # one masked, two small ones
SMALL = (
    "backbone.depth=1",
    "backbone.width=24",
    "backbone.heads=3",
    "method.hidden_dim=16",
    "method.output_dim=8",
    "method.prototypes=5",
    "method.mask_ratio=0.5",
    "method.sharpening=0.25",
    "train.batch_size=6",
)


def setup_of(*words: str, **fields: Any) -> Setup:
    settings = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/msn", [*SMALL, *settings, *words]), 12)


def small_msn(**fields: Any) -> MSN:
    """A method whose teacher is another network than its student."""
    torch.manual_seed(0)
    setup = setup_of(**fields)
    method = MSN(setup, ViT(setup.config.backbone)).double()
    for parameter in (*method.teacher.parameters(), *method.teacher_projector.parameters()):
        parameter.data += 0.1 * torch.randn_like(parameter)
    return method


def whole_batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    views = {
        "global": torch.randn(6, 2, 3, 16, 16, dtype=torch.float64, generator=generator),
        "local": torch.randn(6, 2, 3, 12, 12, dtype=torch.float64, generator=generator),
    }
    places = torch.stack([torch.randperm(16, generator=generator) for _ in range(12)])
    mask = (places < 8).view(6, 2, 4, 4)
    return Batch(views, torch.arange(6), torch.full((6,), -1), extras={"global.mask": mask})


def at(index: int) -> Step:
    return Step(index, 100, 10)


def anchors(method: MSN, batch: Batch) -> Tensor:
    """[6, 3, D]: of the masked view the visible patches one image at a time, the small views whole."""
    masked = []
    for image in range(6):
        keep = [place for place in range(16) if not batch.extras["global.mask"][image, 1].flatten()[place]]
        view = batch.views["global"][image, 1][None]
        masked.append(method.backbone.visible_tokens(view, torch.tensor([keep]))[:, 0])
    z = [method.projector(torch.cat(masked))[:, None]]
    small = method.backbone.tokens(batch.views["local"].flatten(0, 1))[:, 0]
    z.append(method.projector(small).unflatten(0, (6, 2)))
    return F.normalize(torch.cat(z, dim=1), dim=-1)


def targets(method: MSN, batch: Batch, num_rounds: int) -> Tensor:
    """[6, K] by hand: softmax at temperature 0.1, sharpened by the power of 4, balanced over the batch."""
    tokens = method.teacher.module.tokens(batch.views["global"][:, 0])  # type: ignore[operator, union-attr]
    z = F.normalize(method.teacher_projector(tokens[:, 0]), dim=-1)
    p = torch.softmax(z @ F.normalize(method.prototypes, dim=1).T / 0.1, dim=1) ** 4
    p = p / p.sum(dim=1, keepdim=True)
    for _ in range(num_rounds):
        for k in range(5):
            p[:, k] /= p[:, k].sum() * 5
        for image in range(6):
            p[image] /= p[image].sum() * 6
    return (p / p.sum(dim=1, keepdim=True)).detach()


def expected_loss(method: MSN, batch: Batch, weight: float = 1.0, num_rounds: int = 3) -> Tensor:
    """Equation 1 term by term, with log K so that the second term is 0 at best."""
    z, q = anchors(method, batch), targets(method, batch, num_rounds)
    prototypes = F.normalize(method.prototypes, dim=1)
    terms, mean = [], torch.zeros(5, dtype=torch.float64)
    for image in range(6):
        for anchor in range(NUM_ANCHORS):
            p = torch.softmax(prototypes @ z[image, anchor] / 0.1, dim=0)
            terms.append(-(q[image] * p.log()).sum())
            mean = mean + p / (6 * NUM_ANCHORS)
    return torch.stack(terms).mean() + weight * (math.log(5) + (mean * mean.log()).sum())


@pytest.mark.parametrize(("weight", "num_rounds"), [(1.0, 3), (0.3, 0)])
def test_anchors_predict_the_sharpened_target_and_are_spread_on_average(weight: float, num_rounds: int) -> None:
    method, batch = small_msn(entropy_weight=weight, sinkhorn_iters=num_rounds), whole_batch()
    out = method(batch, at(0))
    expected = expected_loss(method, batch, weight, num_rounds)
    torch.testing.assert_close(out.loss, expected, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == MSN.logged
    out.loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    method.zero_grad()
    expected.backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-12)
    slow = [*method.teacher.parameters(), *method.teacher_projector.parameters()]
    assert all(parameter.grad is None for parameter in slow)


def test_what_is_masked_is_not_seen_and_the_target_is_seen_whole() -> None:
    method, batch = small_msn(), whole_batch()
    before = method(batch, at(0)).loss
    hidden = (
        batch.extras["global.mask"].repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, None]
    )  # [6, 2, 1, 16, 16]
    for view, is_seen in ((1, False), (0, True)):
        pixels = batch.views["global"].clone()
        pixels[:, view] = torch.where(hidden[:, view], 9.0, pixels[:, view])
        other = method(Batch({**batch.views, "global": pixels}, batch.index, batch.label, extras=batch.extras), at(0))
        assert (abs(other.loss - before) > 1e-6) == is_seen


def test_equal_predictions_cost_nothing_where_the_mean_is_spread_and_log_k_where_it_is_not() -> None:
    method, batch = small_msn(entropy_weight=1.0), whole_batch()
    out: StepOutput = method(batch, at(0))
    assert 0 < out.metrics["mean_entropy"] <= math.log(5)
    torch.nn.init.zeros_(method.projector[-1].weight)
    method.projector[-1].bias.data.copy_(50 * method.prototypes[2])
    collapsed = method(batch, at(0))
    assert collapsed.metrics["mean_entropy"] < out.metrics["mean_entropy"]
    assert collapsed.metrics["embedding_std"] < 1e-6


def test_the_teacher_follows_along_a_straight_line_and_is_what_benchmarks_see() -> None:
    method, batch = small_msn(momentum=0.9), whole_batch()
    for index, momentum in ((0, 0.9), (50, 0.95)):
        before = {name: value.clone() for name, value in method.teacher.named_parameters()}
        method.after_update(at(index), batch, {})
        for name, value in method.teacher.named_parameters():
            student = method.backbone.get_parameter(name.removeprefix("module."))
            torch.testing.assert_close(value, momentum * before[name] + (1 - momentum) * student, rtol=1e-9, atol=0)
    assert method.export() is method.teacher.module


def test_prototypes_do_not_decay() -> None:
    method = small_msn()
    decaying, kept = method.param_groups(method.setup.config.optim)
    assert any(parameter is method.prototypes for parameter in kept["params"])
    assert kept["weight_decay_scale"] == 0.0
    plain = split_groups(method, method.setup.config.optim)
    assert len(decaying["params"]) == len(plain[0]["params"]) - 1


@pytest.mark.parametrize("fields", [{"temperature": 1e-4}, {"temperature": 1e4}, {"sharpening": 1e-3}])
def test_loss_and_gradients_are_finite_at_extremes(fields: dict[str, float]) -> None:
    method = small_msn(**fields).float()
    out = method(whole_batch().map(lambda rows: rows.float() if rows.is_floating_point() else rows), at(0))
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_settings_and_views_are_the_papers() -> None:
    config = MSN.Config()
    assert (config.temperature, config.sharpening, config.prototypes, config.output_dim) == (0.1, 0.25, 1024, 256)
    assert (config.momentum, config.momentum_end, config.mask_ratio) == (0.996, 1.0, 0.15)
    groups = MSN.views(Setup.of(load_config("msn", ["data.path=/somewhere"]), 2000)).groups
    assert [len(groups[name]) for name in ("global", "local")] == [2, 10]
    assert (groups["global"][1].crop.size, groups["global"][1].crop.scale) == (224, (0.3, 1.0))
    assert (groups["local"][0].crop.size, groups["local"][0].crop.scale) == (96, (0.05, 0.3))
    assert groups["global"][1].mask is not None
    assert groups["local"][0].mask is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.views.size=18", "data.image_size=18"], r"views of 18 pixels .* set data\.image_size=16 or 20"),
        (["method.views.local_size=3"], r"views of 3 pixels .* set method\.views\.local_size=4,"),
        (["method.views.num=1"], r"method\.views\.num is 1; .* set it to 2"),
        (["method.mask_ratio=0.99"], "drops all 16 patches"),
    ],
)
def test_check_refuses_what_cannot_work(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MSN.check(setup_of(*words))
    MSN.check(setup_of("method.views.local_size=3", "method.views.num_local=0"))


def test_check_refuses_a_network_without_patches() -> None:
    config = load_config("cifar10/msn", ["data.path=/somewhere", "backbone=resnet", "method.views.local_size=16"])
    with pytest.raises(ConfigError, match=r"'resnet' has no patches.*set backbone=vit"):
        MSN.check(Setup.of(config, 2000))
