import pytest

from perf.harness import ratios
from perf.start import RATIO, measure, table
from raysl.errors import RunFailed


@pytest.mark.cluster
def test_a_start_that_fails_is_reported_with_what_it_said() -> None:
    with pytest.raises(RunFailed, match=r"(?s)pretrain no-such-config.*ended with code 2.*error: "):
        measure("no-such-config", repeats=1)


def test_the_table_adds_the_goal_to_the_total() -> None:
    repeats = [{"total": 9.0, "imports": 3.0, "ray": 6.0}, {"total": 21.0, "imports": 5.0, "ray": 16.0}]
    seconds = [{"raysl": 10.0, "bare": 8.0}, {"raysl": 22.0, "bare": 20.0}]
    numbers = {"start": {"total": 15.0, "imports": 4.0, "ray": 11.0}, "repeats": repeats, "seconds": seconds}
    lines = table(numbers | {"ratios": ratios(seconds, [RATIO])}).splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["imports", "4.00"], ["ray", "11.00"], ["total", "15.00"]]
    assert lines[2].endswith("(9.0 to 21.0)  goal at most 15 s: ok")
    assert [line.split()[-7] for line in lines[3:5]] == ["16.00", "14.00"]
    assert lines[5].endswith("1.18 (1.10 to 1.25)  goal at most 1: short")


@pytest.mark.slow
def test_the_parts_of_a_start_add_up() -> None:
    overrides = ("data.limit=64", "train.batch_size=32", "optim.warmup=0ep")
    numbers = measure(overrides=overrides, repeats=1)
    parts = dict(numbers["start"])
    total = parts.pop("total")
    assert {"imports", "ray", "workers", "method", "first step"} <= set(parts)
    assert total == pytest.approx(sum(parts.values()), abs=0.1)
    assert set(numbers["seconds"][0]) == {"raysl", "bare"}
    assert numbers["seconds"][0]["raysl"] == pytest.approx(total, abs=1.0)
