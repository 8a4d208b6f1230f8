from collections.abc import Callable

import pytest

from raysl.config import schema
from raysl.config.docs import annotate, describe, field_docs
from raysl.config.load import load_config

Write = Callable[[str, str], str]


def test_every_setting_is_told_with_the_line_below_it(tiny: str) -> None:
    rows = {row.key: (row.value, row.line) for row in describe(load_config(tiny, ["benchmarks.neighbours.k=3"]))}
    assert rows["method.temperature"] == (0.1, "Divisor of the similarities.")
    assert rows["method.head.widths"] == ([128, 128], "Outputs of its layers.")
    assert rows["optim.warmup"][0] == "10ep"
    assert rows["optim.lr"][1] == "Peak learning rate for `lr_batch_size` images. At least 0."
    assert rows["method.name"][1].startswith("Alias, ")
    assert rows["benchmarks.neighbours.k"] == (3, "Neighbours that vote.")
    assert rows["method.note"] == (None, "")
    assert "method" not in rows


def test_every_field_of_the_schema_has_a_line() -> None:
    for kind in (schema.RunConfig, schema.TrainConfig, schema.OptimConfig, schema.DataConfig):
        assert set(field_docs(kind)) == set(kind.__dataclass_fields__)


def test_class_without_source_has_no_lines() -> None:
    made: dict[str, type] = {}
    exec("class Made:\n    a: int\n    'text'", {"__name__": "nowhere"}, made)
    assert field_docs(made["Made"]) == {}


@pytest.mark.thorough
def test_annotated_tree_loads_as_the_same(tiny: str, write: Write) -> None:
    config = load_config(
        tiny,
        [
            "benchmarks.neighbours.k=3",
            "storage='a\\${b} # c\n\nd'",
            "name='007'",
            "method.layers=[a, 1, '1']",
            "method.local={}",
        ],
    )
    text = annotate(config)
    assert load_config(write("again.yaml", text)) == config
    line = next(line for line in text.splitlines() if line.startswith("  temperature:"))
    assert line.split("  # ") == [line.split("  # ")[0], "Divisor of the similarities."]
