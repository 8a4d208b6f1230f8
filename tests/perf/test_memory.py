"""`python -m perf memory`."""

import os

import pytest

from perf import memory
from perf.memory import KINDS, Sample, table


def test_the_table_tells_a_kind_of_process_that_grows_from_those_that_do_not() -> None:
    samples = [
        Sample(step, dict.fromkeys(KINDS, 10**8) | {"worker": 10**8 + 10**4 * step, "shared memory": 0})
        for step in range(0, 10_001, 100)
    ]
    numbers = memory.summarize(samples)
    assert numbers["memory_mb"]["worker"] == pytest.approx([110, 125, 150, 175, 198])  # the last of five samples
    assert numbers["growth"] == pytest.approx(dict.fromkeys(KINDS, 1.0) | {"worker": 198 / 125})
    lines = {line.split("  ")[0]: line for line in table(numbers).splitlines()}
    assert lines["worker"].endswith("short")
    assert lines["data tasks"].endswith("ok")
    assert not lines["shared memory"].endswith(("ok", "short"))


def test_the_memory_of_another_process_is_read_and_one_that_has_ended_has_none() -> None:
    assert memory.unmapped(os.getpid()) == pytest.approx(memory.unmapped(), rel=0.1)
    assert memory.unmapped(2**22 + 1) == 0
