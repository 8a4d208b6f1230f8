import contextlib
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysl.config.build import from_dict
from raysl.config.config_files import expand, read
from raysl.config.docs import annotate
from raysl.config.dump import dump, escape, to_dict, unescape, write, write_inline
from raysl.config.load import load_config
from raysl.errors import ConfigError

PARTS = "tests/config/parts.py"
PRINTABLE = st.characters(codec="utf-8", exclude_categories=("Cs",))
TEXT = st.one_of(st.text(PRINTABLE, max_size=12), st.text(alphabet="\\${}a.'\"#: -\n\t1e~", max_size=12))
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
KEY = st.text(alphabet=string.ascii_letters + string.digits + "_-/", min_size=1, max_size=6)
DURATION = st.one_of(
    st.integers(0, 10**9).map(lambda n: f"{n}st"),
    st.floats(0, 1e6, allow_subnormal=False).map(lambda x: f"{x:.6f}".rstrip("0").rstrip(".") + "ep"),
)
HEAD = st.fixed_dictionaries({}, optional={"widths": st.lists(st.integers(), max_size=3), "bias": st.booleans()})
METHOD = st.fixed_dictionaries(
    {"name": st.just(f"{PARTS}:Contrast")},
    optional={
        "temperature": FLOAT,
        "level": st.sampled_from([0, 1]),
        "shape": st.sampled_from(["square", "wide"]),
        "head": HEAD,
        "local": st.none() | HEAD,
        "range": st.tuples(FLOAT, FLOAT).map(list),
        "ramp": st.none() | DURATION,
        "terms": st.dictionaries(KEY, FLOAT, max_size=3),
        "layers": st.lists(TEXT | st.integers(), max_size=3),
        "note": st.recursive(
            st.none() | st.booleans() | st.integers() | FLOAT | TEXT, lambda x: st.lists(x, max_size=2), max_leaves=4
        ),
    },
)
TREE = st.fixed_dictionaries(
    {
        "method": METHOD,
        "backbone": st.fixed_dictionaries({"name": st.just(f"{PARTS}:Net"), "width": st.integers()}),
        "data": st.fixed_dictionaries({"name": st.just(f"{PARTS}:Pictures")}, optional={"path": st.none() | TEXT}),
        "optim": st.fixed_dictionaries({"name": st.just(f"{PARTS}:Adam")}, optional={"lr": st.floats(0, 1e6)}),
    },
    optional={
        "seed": st.integers(0, 2**32 - 1),
        "storage": TEXT.filter(lambda text: text.strip() and expand(text) == text),  # as a loaded one is
        "benchmarks": st.dictionaries(
            KEY, st.fixed_dictionaries({"name": st.just("neighbours"), "k": st.integers()}), max_size=2
        ),
    },
)
FEW = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.thorough
@settings(FEW, max_examples=20)
@given(tree=TREE)
def test_any_tree_survives_dump_and_load(tree: dict[str, Any], tmp_path: Path) -> None:
    config = from_dict(tree)
    assert from_dict(to_dict(config)) == config
    for text in (dump(config), annotate(config)):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        assert load_config(str(path)) == config


@pytest.mark.thorough
@FEW
@given(value=st.one_of(TEXT, FLOAT, st.integers(), st.text(alphabet="0123456789.eE+-_:xob", max_size=8)))
def test_yaml_gives_back_every_scalar_as_it_was(value: object) -> None:
    for text in (write(escape(value)), write_inline(escape(value))):
        again = unescape(read(text, "text"))
        assert (type(again), again) == (type(value), value)
    assert len(write_inline(value).splitlines()) <= 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-2.e+1", -20.0),
        ("1_000", 1000),
        ("0x10", 16),
        ("-.inf", float("-inf")),
        ("2026-01-01", "2026-01-01"),
        ("1e", "1e"),
        ("e3", "e3"),
        ("10ep", "10ep"),
        ("5%", "5%"),
        ("089", "089"),
        ("~", None),
        ("", None),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: object) -> None:
    assert read(text, "text") == value
    assert type(read(text, "text")) is type(value)


@pytest.mark.thorough
@FEW
@given(
    junk=st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda x: st.lists(x, max_size=2) | st.dictionaries(KEY, x, max_size=2),
    )
)
def test_junk_anywhere_is_a_config_error_or_a_config(junk: Any) -> None:
    full = {
        "method": {"name": "contrast"},
        "backbone": {"name": "net", "width": 1},
        "data": {"name": "pictures"},
        "optim": {"name": "adam"},
    }
    for key in (*full, "train", "benchmarks", "seed", "extra"):
        with contextlib.suppress(ConfigError):
            config = from_dict({**full, key: junk})
            assert from_dict(to_dict(config)) == config
