"""A list of batches as the stream that `fit` reads."""

import torch

from raysl.train.batches import ListBatches
from tests.train.problem import batches, problem


def test_a_list_gives_the_first_view_of_each_image_as_plain_images() -> None:
    _, plan = problem()
    made = [batch.map(lambda rows: rows) for batch in batches(plan)]
    plain = list(ListBatches(made, plan).plain())
    assert len(plain) == len(made)
    for one, batch in zip(plain, made, strict=True):
        assert list(one.views) == ["image"]
        assert one.extras == {}
        assert torch.equal(one.views["image"], batch.views["global"][:, :1])
        assert torch.equal(one.index, batch.index)


def test_batches_of_a_list_know_where_training_is() -> None:
    _, plan = problem("seed=7")
    made = batches(plan)
    stream = ListBatches(made, plan).from_step(3)
    for step in (3, 4, 5):
        batch = next(stream)
        assert (batch.seed, batch.epoch, batch.step) == (7, step // plan.epoch_len, step)
        assert torch.equal(batch.views["global"], made[step % len(made)].views["global"])
