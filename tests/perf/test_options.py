"""What `python -m perf options` runs and reports, at a size that is done in seconds."""

import re

import pytest

from perf.options import PLAIN, measure, option_names, settings_of, table
from raysl.errors import ConfigError

TINY = ("backbone.depth=10", "backbone.width=8", "backbone.num_stages=2", "method.views.size=32", "data.image_size=32")


def test_combinations_are_all_of_precision_kernels_and_memory() -> None:
    names = option_names()
    assert len(set(names)) == 2 * 3 * 3 + 2
    assert names[0] == PLAIN
    assert settings_of("bf16 compile recomputed") == (
        "train.precision=bf16",
        "train.compile=true",
        "train.recompute=all",
    )


@pytest.mark.slow
def test_combinations_are_measured_beside_the_plain_one() -> None:
    numbers = measure(
        "resnet50",
        [PLAIN, "bf16 channels_last accumulated", "fp32 default plain piped"],
        repeats=1,
        batch_size=8,
        threads=1,
        settings=TINY,
    )
    plain, other, piped = numbers["options"].values()
    assert plain["ratio"] == 1
    assert other["images_per_s"] > 0
    assert piped["images_per_s"] > 0
    assert 0.1 < other["memory_gb"] < 20
    assert 0 < numbers["plain"]["share"] < 1
    assert numbers["plain"]["flops"] > 8 * 2 * 1e6
    shown = table(numbers)
    assert re.search(r"bf16 +channels_last +accumulated +held", shown)
    assert re.search(r"fp32 +default +plain +piped", shown)
    assert "of the rate of fp32 matrix products here" in shown


@pytest.mark.parametrize("name", ["fp8 default plain", "fp32 plain", "fp32 default plain more"])
def test_an_unknown_combination_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no options '.*'; write one of fp32 default plain, fp32 default recomputed"):
        measure("resnet50", [name])


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="no model 'resnet51'; choose from resnet50, vit_s"):
        measure("resnet51")
