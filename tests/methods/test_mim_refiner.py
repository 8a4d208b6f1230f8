from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.mim_refiner import MIMRefiner, neighbor_alignment
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(*words: str, **fields: Any) -> Setup:
    mine = {"num_neighbors": 3, "queue_size": 9, "hidden_dim": 8, "predictor_dim": 8, "output_dim": 5, **fields}
    small = ["backbone.depth=3", "backbone.width=24", "backbone.heads=3", f"train.batch_size={NUM}"]
    return Setup.of(
        load_config(
            "digits/mim_refiner", [*small, *(f"method.{name}={value}" for name, value in mine.items()), *words]
        ),
        NUM,
    )


def small_refiner(*words: str, **fields: Any) -> MIMRefiner:
    torch.manual_seed(0)
    setup = setup_of(*words, **fields)
    return MIMRefiner(setup, ViT(setup.config.backbone)).double()


def whole_batch() -> Batch:
    numbers = torch.Generator().manual_seed(1)
    large = torch.randn(NUM, 2, 3, 16, 16, dtype=torch.float64, generator=numbers)
    small = torch.randn(NUM, 1, 3, 12, 12, dtype=torch.float64, generator=numbers)
    return Batch({"global": large, "local": small}, torch.arange(NUM) + 20, torch.full((NUM,), -1))


def unit(row: Tensor) -> Tensor:
    return row / row.norm()


def slow(z: Tensor, neighbors: Tensor, p: Tensor, rows: Tensor, temperature: float) -> float:
    """Of embeddings and neighbours [B, G, D] and predictions [N, V, D], term by term."""
    terms = []
    for image, row in enumerate(rows.tolist()):
        for large in range(z.shape[1]):
            for view in range(p.shape[1]):
                if view == large:
                    continue
                scores = torch.stack(
                    [
                        unit(p[other, view]) @ (neighbors if other == row else z)[image, large] / temperature
                        for other in range(len(p))
                    ]
                )
                terms.append((scores.logsumexp(dim=0) - scores[row]).item())
    return sum(terms) / len(terms)


@pytest.mark.thorough
def test_the_loss_swaps_positives_alone() -> None:
    numbers = torch.Generator().manual_seed(3)
    z, neighbors = torch.nn.functional.normalize(
        torch.randn(2, 4, 2, 5, dtype=torch.float64, generator=numbers), dim=-1
    )
    p, rows = torch.randn(7, 5, 5, dtype=torch.float64, generator=numbers), torch.tensor([2, 3, 4, 5])
    loss, hits = neighbor_alignment(z, neighbors, p, rows, 0.3)
    assert loss.item() == pytest.approx(slow(z, neighbors, p, rows, 0.3), rel=1e-9)
    assert 0 <= hits.item() <= 1
    others = p.clone().requires_grad_()
    torch.autograd.gradcheck(lambda p: neighbor_alignment(z, neighbors, p, rows, 0.3)[0], others)


def test_a_step_is_the_sum_over_heads_on_the_last_blocks() -> None:
    method, batch = small_refiner(), whole_batch()
    method.owners[:2] = torch.tensor([20, 21])
    out = method(batch, STEP)
    tokens = [method.backbone.stages(batch.views[group].flatten(0, 1), ["block2", "class"]) for group in batch.views]
    draws = batch.random("neighbors").integers_on(torch.device("cpu"), 4, 3).view(NUM, 2, 2)
    total = 0.0
    for head, stage in enumerate(("block2", "class")):
        views = [outputs[stage] if stage == "class" else outputs[stage][:, 0] for outputs in tokens]
        h = torch.cat([rows.view(NUM, -1, 24) for rows in views], dim=1)  # [NUM, 3, 24]
        z = method.projectors[head](h.flatten(0, 1))
        p = method.predictors[head](z).view(NUM, 3, -1)
        z = torch.stack([unit(row) for row in z]).view(NUM, 3, -1)[:, :2].detach()
        keys, near = method.queue.keys[:, head], torch.zeros_like(z)
        for image in range(NUM):
            allowed = [place for place in range(9) if method.owners[place] != batch.index[image]]
            for view in range(2):
                best = sorted(allowed, key=lambda place: -(keys[place] @ z[image, view]).item())
                near[image, view] = keys[best[int(draws[image, head, view])]]
        total += slow(z, near, p, torch.arange(NUM), method.config.temperature)
    assert out.loss.item() == pytest.approx(total, rel=1e-9)
    assert tuple(out.metrics) == MIMRefiner.logged


def test_an_image_is_never_its_own_neighbour() -> None:
    method, batch = small_refiner(num_neighbors=1), whole_batch()
    z = method(batch, STEP).carry["z"]
    method.queue.keys[:NUM] = z
    first = method._neighbors(z[:, :, None], batch)[:, :, 0]
    torch.testing.assert_close(first, z)
    method.owners[:NUM] = batch.index
    assert (method._neighbors(z[:, :, None], batch)[:, :, 0] - z).norm(dim=-1).min() > 1e-3


def test_first_views_enter_the_queue_of_each_head_with_their_image() -> None:
    method, batch = small_refiner(), whole_batch()
    for _ in range(2):
        out = method(batch, STEP)
        method.after_update(STEP, batch, out.carry)
    assert method.owners.tolist() == [23, 24, 25, 23, 24, 25, 20, 21, 22]
    torch.testing.assert_close(method.queue.keys[6:], out.carry["z"][:3])
    torch.testing.assert_close(method.queue.keys[:3], out.carry["z"][3:])
    assert out.carry["z"].shape == (NUM, 2, 5)


def test_heads_alone_learn_in_the_stage_before() -> None:
    config = load_config("continue/mim_refiner_heads", ["data.path=/somewhere"])
    assert (config.method.num_neighbors, config.backbone.freeze) == (1, ("all",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.queue_size=5"], r"method\.queue_size is 5 and train\.batch_size 6"),
        (["method.num_neighbors=10"], r"method\.num_neighbors is 10 of a queue of 9"),
        (["method.num_heads=4"], r"method\.num_heads is 4, and the backbone has 3 blocks"),
        (["method.views.num=1", "method.views.num_local=0"], r"compares large views with other views"),
        (["backbone=resnet"], r"backbone 'resnet' has no patches"),
        (["method.views.local_size=10"], r"small views of 10 pixels are not covered by patches of 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(words: list[str], message: str) -> None:
    if words == ["backbone=resnet"]:
        setup = Setup.of(load_config("digits/simclr", [f"train.batch_size={NUM}"]), NUM)
    else:
        setup = setup_of(*words)
    with pytest.raises(ConfigError, match=message):
        MIMRefiner.check(setup)
    MIMRefiner.check(setup_of())
