import subprocess
import sys

import pytest

from raysl.process.memory import most_resident, resident

MB = 2**20


def test_the_most_resident_memory_stays_when_some_is_given_back() -> None:
    held = bytearray(b"1" * (64 * MB))
    most = most_resident()
    assert most >= resident() >= len(held)
    del held
    assert most_resident() >= most - MB  # Linux counts pages in batches


@pytest.mark.cluster
def test_what_the_starting_process_had_does_not_count() -> None:
    held = bytearray(b"1" * (512 * MB))
    told = "from raysl.process.memory import most_resident; print(most_resident())"
    child = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert int(child.stdout) < len(held) / 2
