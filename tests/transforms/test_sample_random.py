"""Random numbers that belong to a sample."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.hashing import hash_words, step_seed
from raysl.transforms import SampleRandom

NUM = 20_000
INDEX = np.arange(NUM)
words = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def all_draws(random: SampleRandom) -> list[np.ndarray]:
    return [
        random.uniform(),
        random.uniforms(3, -1.0, 2.0),
        random.bernoulli(0.3),
        random.integers(-5, 100),
        random.permutation(5),
        random.at(4).uniform(),
    ]


@settings(max_examples=30, deadline=None)
@given(seed=words, epoch=st.integers(0, 10_000), view=st.integers(0, 20), order=st.permutations(range(9)))
def test_a_sample_has_the_same_numbers_in_any_batch(seed: int, epoch: int, view: int, order: list[int]) -> None:
    index = np.array([0, 1, 2, 77, 2**40, 2**63 - 1, -1, 5, 6])
    together = all_draws(SampleRandom(seed, epoch, index, view))
    shuffled = all_draws(SampleRandom(seed, epoch, index[order], view))
    alone = all_draws(SampleRandom(seed, epoch, index[3:4], view))
    for whole, permuted, single in zip(together, shuffled, alone, strict=True):
        assert np.array_equal(whole[order], permuted)
        assert np.array_equal(whole[3:4], single)


def test_known_numbers_stay_what_they_are() -> None:
    """A change of these numbers changes the augmentations of every run that is resumed."""
    assert hash_words(1, 2, 3) == 15378950933529109311
    assert step_seed(1, 2, 3) == 3671994894015517199
    assert SampleRandom(1, 2, np.array([3]), 4).at(5).uniform()[0] == 0.7922599704022132


def mix(word: int) -> int:
    """The finaliser of SplitMix64 as published, on Python's integers."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def test_arrays_are_mixed_as_python_integers_are() -> None:
    golden = 0x9E3779B97F4A7C15
    key = hash_words(1, 11, 12)  # purpose: a sample; seed; epoch
    for word in (2**40 + 1, 3):  # index, view
        key = mix(key ^ mix((word + golden) % 2**64))
    for num_draws in range(2):
        word = (hash_words(4, num_draws) + golden) % 2**64
        expected = mix(key ^ mix(word)) >> 11
        random = SampleRandom(11, 12, np.array([2**40 + 1]), 3)
        draws = [random.uniform()[0] for _ in range(2)]
        assert draws[num_draws] == expected * 2.0**-53


@pytest.mark.parametrize("other", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)])
def test_neighbouring_keys_are_independent(other: tuple[int, int, int, int]) -> None:
    seed, epoch, view, slot = other
    here = SampleRandom(0, 0, INDEX, 0).at(0).uniform()
    there = SampleRandom(seed, epoch, INDEX, view).at(slot).uniform()
    assert abs(np.corrcoef(here, there)[0, 1]) < 4 / np.sqrt(NUM)
    table = np.histogram2d(here, there, bins=10, range=[[0, 1], [0, 1]])[0]
    assert chi_square(table.ravel()) < 99 + 5 * np.sqrt(2 * 99)


@pytest.mark.parametrize("lag", [1, 2, 64, 4096])
def test_consecutive_samples_are_independent(lag: int) -> None:
    values = SampleRandom(7, 3, INDEX, 1).uniform()
    table = np.histogram2d(values[:-lag], values[lag:], bins=10, range=[[0, 1], [0, 1]])[0]
    assert chi_square(table.ravel()) < 99 + 5 * np.sqrt(2 * 99)


def test_successive_draws_and_slots_are_independent() -> None:
    random = SampleRandom(7, 3, INDEX, 1)
    columns = [
        random.uniform(),
        random.uniform(),
        *random.uniforms(3).T,
        random.at(0).uniform(),
        random.at(1).uniform(),
    ]
    columns += [random.at(0).at(0).uniform(), random.at(1).at(0).uniform()]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 5 / np.sqrt(NUM)


def test_a_slot_does_not_depend_on_what_was_drawn_before() -> None:
    fresh, used = SampleRandom(0, 0, INDEX[:5], 0), SampleRandom(0, 0, INDEX[:5], 0)
    used.uniforms(10)
    assert np.array_equal(fresh.at(3).uniform(), used.at(3).uniform())


def test_every_bit_of_a_key_flips_half_the_bits_of_the_hash() -> None:
    flips = [
        bin(hash_words(5, word) ^ hash_words(5, word ^ (1 << bit))).count("1")
        for word in range(0, 4000, 400)
        for bit in range(64)
    ]
    assert abs(np.mean(flips) - 32) < 5 * 4 / np.sqrt(len(flips))


def test_uniforms_have_the_moments_and_the_range_asked_for() -> None:
    values = SampleRandom(1, 1, INDEX, 0).uniforms(5, -2.0, 4.0)
    assert values.shape == (NUM, 5)
    assert values.min() >= -2.0
    assert values.max() < 4.0
    assert abs(values.mean() - 1.0) < 0.03
    assert abs(values.std() - 6 / np.sqrt(12)) < 0.02
    assert chi_square(np.histogram(values, bins=50, range=(-2, 4))[0]) < 49 + 5 * np.sqrt(2 * 49)


def test_the_upper_bound_is_never_reached_by_rounding() -> None:
    high = np.nextafter(1.0, 2.0)
    values = SampleRandom(1, 1, INDEX, 0).uniform(1.0, high)  # the only number in [1, high) is 1
    assert (values == 1.0).all()
    assert (SampleRandom(1, 1, INDEX, 0).uniform(3.0, 3.0) == 3.0).all()


def test_bernoulli_hits_its_probability_and_the_certain_ones_exactly() -> None:
    random = SampleRandom(1, 1, INDEX, 0)
    assert abs(random.bernoulli(0.3).mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / NUM)
    assert not random.bernoulli(0.0).any()
    assert random.bernoulli(1.0).all()


def test_integers_are_even_and_take_a_bound_for_each_sample() -> None:
    random = SampleRandom(1, 1, INDEX, 0)
    values = random.integers(-3, 4)
    assert values.dtype == np.int64
    assert chi_square(np.bincount(values + 3, minlength=7)) < 6 + 5 * np.sqrt(12)
    assert values.min() == -3
    assert values.max() == 3
    high = INDEX % 4 + 1
    values = random.integers(0, high)
    assert (values < high).all()
    assert all(set(values[high == bound]) == set(range(bound)) for bound in range(1, 5))


def test_permutations_are_all_equally_likely() -> None:
    orders = SampleRandom(1, 1, INDEX, 0).permutation(4)
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    counts = np.unique(orders @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(counts) == 24
    assert chi_square(counts) < 23 + 5 * np.sqrt(46)


def test_step_seeds_differ_by_step_and_rank_and_fit_63_bits() -> None:
    seeds = {step_seed(0, step, rank) for step in range(1000) for rank in range(8)}
    assert len(seeds) == 8000
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda random: random.uniform(2.0, 1.0), "swap the bounds"),
        (lambda random: random.bernoulli(1.5), r"outside \[0, 1\]"),
        (lambda random: random.integers(3, 3), "exclusive"),
    ],
)
def test_impossible_draws_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(SampleRandom(0, 0, INDEX[:3], 0))


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@settings(max_examples=30, deadline=None)
@given(seed=words, high=st.integers(1, 2**53), num=st.integers(1, 300))
def test_integers_made_on_a_device_are_those_of_the_host_to_the_last(seed: int, high: int, num: int) -> None:
    index = np.array([0, 1, 2, 77, 2**40, 2**63 - 1, -1])
    there, here = (SampleRandom(seed, 3, index, 1).at(9) for _ in range(2))
    for _ in range(2):  # each draw is a fresh one
        expected = here.uniforms(num, 0.0, high).astype(np.int64)
        assert np.array_equal(there.integers_on(torch.device("cpu"), num, high).numpy(), expected)
    assert np.array_equal(there.uniform(), here.uniform())


def test_normal_numbers_made_on_a_device_are_quantiles_of_the_hosts_uniform_ones() -> None:
    there, here = (SampleRandom(5, 3, np.arange(4), 1).at(9) for _ in range(2))
    for _ in range(2):  # each draw is a fresh one
        found = there.normals_on(torch.device("cpu"), 5000)
        assert torch.allclose(torch.special.ndtr(found), torch.from_numpy(here.uniforms(5000)), atol=1e-12)
    assert abs(float(found.mean())) < 0.03
    assert abs(float(found.std()) - 1) < 0.03


@pytest.mark.parametrize("num_draws", [0, 2])
def test_streams_of_several_slots_are_those_of_each(num_draws: int) -> None:
    random = SampleRandom(1, 2, np.arange(5), 3)
    together = random.at_each([4, 0, 17], num_draws).uniforms(6).reshape(3, 5, 6)
    for slot, numbers in zip([4, 0, 17], together, strict=True):
        alone = random.at(slot)
        for _ in range(num_draws):
            alone.uniform()
        assert np.array_equal(alone.uniforms(6), numbers)
