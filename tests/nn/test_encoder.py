import math

import torch
from torch import nn

from raysl.data.batch import Batch
from raysl.nn.drop_path import Dropout, drop_slots, keyed_draws
from raysl.nn.encoder import EncoderLayer, position_waves


def batch_of(first: int, end: int, epoch: int = 0) -> Batch:
    index = torch.arange(first, end)
    return Batch({}, index, torch.full_like(index, -1), epoch=epoch)


def test_a_layer_is_torchs_with_the_same_weights() -> None:
    torch.manual_seed(0)
    ours, theirs = (
        EncoderLayer(16, 4, 24).double(),
        nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True).double(),
    )
    names = {
        "qkv.weight": "self_attn.in_proj_weight",
        "qkv.bias": "self_attn.in_proj_bias",
        "proj.weight": "self_attn.out_proj.weight",
        "proj.bias": "self_attn.out_proj.bias",
    }
    linear = {"fc1": "linear1", "fc2": "linear2"}
    state = theirs.state_dict()
    for name, value in ours.state_dict().items():
        part, _, kind = name.partition(".")
        state[names.get(name, f"{linear.get(part, part)}.{kind}")].copy_(value)
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-12)


def test_initial_weights_have_the_sizes_of_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = EncoderLayer(64, 8, 128), nn.TransformerEncoderLayer(64, 8, 128, batch_first=True)
    for mine, other in ((ours.qkv.weight, theirs.self_attn.in_proj_weight), (ours.fc1.weight, theirs.linear1.weight)):
        assert math.isclose(mine.std().item(), other.std().item(), rel_tol=0.05)
    assert not ours.qkv.bias.any()
    assert not ours.proj.bias.any()


def test_dropout_leaves_out_its_share_of_values_and_keeps_the_mean() -> None:
    drop = Dropout(0.25, 0)
    with keyed_draws(batch_of(0, 100)):
        out = drop(torch.ones(100, 7, 20))
    assert math.isclose((out == 0).double().mean().item(), 0.25, abs_tol=0.01)
    assert torch.equal(out.unique(), torch.tensor([0.0, 4 / 3]))
    assert drop.eval()(out) is out


def test_what_dropout_draws_belongs_to_the_sample_on_whatever_rank_it_is() -> None:
    drop, x = Dropout(0.5, 3), torch.ones(50, 4, 6)

    def dropped(batch: Batch) -> torch.Tensor:
        with keyed_draws(batch, drop_slots(drop)):
            return drop(x[: len(batch)])

    whole = dropped(batch_of(0, 50))
    assert torch.equal(torch.cat([dropped(batch_of(0, 17)), dropped(batch_of(17, 50))]), whole)
    assert not torch.equal(dropped(batch_of(0, 50, epoch=1)), whole)
    with keyed_draws(batch_of(0, 50)):
        first, second = drop(x), drop(x)
    assert torch.equal(first, whole)
    assert not torch.equal(second, whole)
    assert len(whole.flatten(1).unique(dim=0)) == 50


def test_layers_of_an_encoder_draw_numbers_of_their_own() -> None:
    encoder = nn.Sequential(*(EncoderLayer(16, 4, 24, 0.1, number) for number in range(3)))
    assert drop_slots(encoder) == list(range(12))
    assert drop_slots(encoder.eval()) == []


def test_every_pair_of_tokens_has_a_wave() -> None:
    found = position_waves(5, 7).double()
    for token in range(5):
        rate = 10000 ** (-(token // 2) / 3)
        wave = math.cos if token % 2 else math.sin
        expected = torch.tensor([wave(rate * place) for place in range(7)], dtype=torch.float64)
        torch.testing.assert_close(found[token], expected, rtol=1e-6, atol=1e-7)
