"""Another version of raysl is started as the present one."""

from pathlib import Path
from typing import Any

import pytest

from perf import checkouts
from perf.recovery import measure_recovery
from perf.start import measure_start
from raysl.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]


def test_versions_are_the_present_one_and_that_of_the_checkout() -> None:
    assert checkouts.versions(CHECKOUT) == {"raysl": None, "before": CHECKOUT}


@pytest.mark.parametrize("measure", [measure_start, measure_recovery])
def test_a_folder_that_is_no_checkout_is_refused_before_anything_is_measured(measure: Any, tmp_path: Path) -> None:
    assert checkouts.versions(None) == {"raysl": None}
    with pytest.raises(ConfigError, match="git worktree add"):
        measure(beside=tmp_path)
