"""The CPU cores that feed a GPU are measured for each kind of storage."""

import pytest

from perf.cores import case_names, cores_for, measure, table
from raysl.errors import ConfigError


def test_a_gpu_of_twice_the_speed_needs_twice_the_cores() -> None:
    assert cores_for(2000, speed=100) == 2 * cores_for(1000, speed=100) > 20


def test_the_table_has_a_row_for_each_case() -> None:
    numbers = {"images_per_s": dict.fromkeys(case_names(), 400.0), "picture_kb": 43.0}
    rows = table(numbers).splitlines()[2:]
    assert len(rows) == len(case_names()) == 6
    assert rows[0].split()[-4:] == ["400", "1.5", "3.0", "6.0"]


def test_a_case_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such case; known: simclr/parquet"):
        measure(["simclr/zip"])


@pytest.mark.slow
def test_every_source_feeds_the_same_recipe_at_about_the_same_speed() -> None:
    names = [name for name in case_names() if name.startswith("simclr")]
    numbers = measure(names, repeats=1, batches=1, batch_size=8)
    speeds = list(numbers["images_per_s"].values())
    assert len(speeds) == 3
    assert max(speeds) < 4 * min(speeds)
