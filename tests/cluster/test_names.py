"""Any name of a run is one that Ray takes."""

import pytest

from raysl.cluster.names import MOST, ray_name

NAMES = ["ü", "größe 1", "a \"b\" 'c'", "50%", "a+b", "a#b", "a?b=c", "a\tb", "日本" * 60, "x" * 255, "-", "{a}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_becomes_printable_ascii_of_the_length_of_a_folder(name: str) -> None:
    text = ray_name(name)
    assert text.isascii()
    assert text.isprintable()
    assert 0 < len(text) <= MOST
    assert not set(text) & set("/\\?")


def test_different_names_stay_different() -> None:
    names = [*NAMES, "ö", "%C3%BC", "日本" * 61, "x" * 254]
    assert len({ray_name(name) for name in names}) == len(names)


def test_plain_names_stay_as_they_are() -> None:
    for name in ("simclr", "trial_0a1b2c3d", "run 1", "a-b_c.d"):
        assert ray_name(name) == name
