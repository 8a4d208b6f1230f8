"""Comparisons with other libraries keep up with raysl, and claims name what they hold under."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torchvision

from raysl.components import ALIASES
from raysl.data.sources.digits import Digits
from tests.methods.test_properties import MARGIN

ROOT = Path(__file__).parents[1]
COMING = ("coming-from-vissl.md", "coming-from-lightly-or-solo-learn.md", "transforms.md")
ABSENT = re.compile(r"\bnot (?:yet|there)\b")
THEIRS = {
    "activation_checkpointing": "recompute",
    "clip_lr": "clip",
    "freezeparametershook": "freeze",
    "fsdp_config": "fsdp",
    "group_size": "sync_bn_ranks",
    "layer4_stride": "last_stride",
    "layer_wise_lr_decay": "layer_decay",
    "zero": "zero1",
}
"""Other names for what raysl has."""
GENERAL = {"model", "name", "data", "test", "label", "images"}
"""Words of prose that are names of settings as well."""
EXACT = re.compile(r"bit\s+for\s+bit|to\s+the\s+(?:last\s+)?bit\b")
CONDITIONS = "runs.md#what-repeats-bit-for-bit"


def quoted(text: str) -> set[str]:
    """The last parts of the keys that are quoted as code."""
    words = [word for part in re.findall(r"`([^`]*)`", text) for word in re.findall(r"[A-Za-z][\w.-]{2,}", part)]
    return {word.rpartition(".")[2].lower() for word in words}


def words_of(text: str) -> set[str]:
    """The same, and names in prose."""
    return quoted(text) | {word.lower() for word in re.findall(r"[A-Z]\w{3,}", re.sub(r"`[^`]*`", "", text))}


@cache
def names_of_raysl() -> set[str]:
    """Aliases, settings, their literal values, transforms, and networks and optimizers that are known by name."""
    names = {alias for slot in ALIASES.values() for alias in slot}
    for room in ("backbones", "benchmarks", "config", "data", "methods", "nn", "optim", "train", "transforms"):
        for path in (ROOT / "raysl" / room).rglob("*.py"):
            text = path.read_text()
            names |= set(re.findall(r"^    +([a-z]\w*): [A-Za-z]", text, re.MULTILINE))
            names |= {
                word for words in re.findall(r"Literal\[([^\]]*)\]", text) for word in re.findall(r'"(\w+)"', words)
            }
    networks = {name.partition("_")[0] for name in torchvision.models.list_models(module=torchvision.models)}
    optimizers = {name for name in vars(torch.optim) if name[0].isupper()}
    return {name.lower() for name in names | networks | optimizers} - GENERAL


def absent(left: str, right: str) -> set[str]:
    """What a row says that raysl lacks."""
    clauses = [clause for clause in re.split(r"[;,.] ", right) if ABSENT.search(clause)]
    is_whole = bool(clauses) and ABSENT.match(right) is not None
    return {word for clause in clauses for word in quoted(clause)} | (words_of(left) if is_whole else set())


@pytest.mark.parametrize("doc", COMING)
def test_what_a_table_calls_absent_does_not_exist(doc: str) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "docs" / doc).read_text(), re.MULTILINE)
    lacking = {word for left, right in rows for word in absent(left, right)}
    names = names_of_raysl()
    assert {"fsdp", "adam", "groups", "swin", "rmsprop"} <= names
    assert {word for word in lacking if THEIRS.get(word, word) in names} == set()


def test_a_row_that_calls_what_exists_absent_is_found() -> None:
    assert absent("`RESNETS.GROUPS`, `NORM`", "not yet") >= {"groups", "norm"}
    assert "group_size" in absent("`SYNC_BN`", "`train.sync_bn`, on by default; groups (`GROUP_SIZE`) not yet")
    assert "sync_bn" not in absent("`SYNC_BN`", "`train.sync_bn`, on by default; groups (`GROUP_SIZE`) not yet")


def test_numbers_of_parts_are_those_of_the_lists() -> None:
    told = (ROOT / "docs/comparison.md").read_text()
    rows = {row[0]: row[1] for row in re.findall(r"^\| \[?(\w+)(?:\]\([^)]*\))? \| \[?(\d+)\b", told, re.MULTILINE)}
    for part, slot in (("methods", "method"), ("benchmarks", "benchmark"), ("sources", "source")):
        assert int(rows[part]) == len(ALIASES[slot]), part


def test_the_digits_of_the_zoo_are_those_of_the_source() -> None:
    source = Digits(Digits.Config())
    train, test = source.split("train"), source.split("test")
    assert train is not None
    assert test is not None
    told = " ".join((ROOT / "docs/zoo.md").read_text().split())
    assert f"{train.num_samples:,} of scikit-learn's" in told
    assert f"the {test.num_samples} others" in told


def test_points_above_the_untrained_network_are_those_that_a_test_asks_for() -> None:
    told = {path.stem: path.read_text() for path in (ROOT / "configs/digits").glob("*.yaml")}
    claims = {name: re.findall(r"(\S+) points or more", text) for name, text in told.items()}
    assert len([name for name in claims if claims[name]]) > 20
    assert {number for numbers in claims.values() for number in numbers} == {f"{MARGIN:g}"}
    assert [
        name for name, text in told.items() if "points or more" in text and "after all these epochs" not in text
    ] == []


def test_a_number_of_another_library_belongs_to_a_recipe_with_its_settings() -> None:
    cited = []
    for path in (ROOT / "configs/imagenet").glob("*.yaml"):
        expected = "".join(re.findall(r"^# Expected: .*\n(?:# .*\n)*", path.read_text(), re.MULTILINE))
        if "VISSL model zoo" in expected and "no number published" not in expected:
            facts = (ROOT / f"tests/published/{path.stem}.yaml").read_text()
            assert "vissl" in facts.lower(), path.stem
            cited.append(path.stem)
    assert "moco" in cited


def paragraphs(text: str) -> list[str]:
    """Rows of tables one by one, and else what stands between empty lines."""
    parts = re.split(r"\n\s*\n", text)
    return [line for part in parts for line in (part.splitlines() if part.lstrip().startswith("|") else [part])]


def test_a_claim_of_exactness_links_to_its_conditions() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    claims = [
        (page.name, part)
        for page in pages
        for part in paragraphs(page.read_text())
        if EXACT.search(part) and page.name not in ("runs.md", "transforms.md")
    ]
    assert len(claims) >= 4
    assert [(page, part[:60]) for page, part in claims if CONDITIONS not in part] == []
    assert "## What repeats bit for bit" in (ROOT / "docs/runs.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_whose_network_is_below_raw_pixels_says_so(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    prose = " ".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    shown = json.dumps(cells)
    rows = re.findall(r"(?:1|5)_shot +(\d+\.\d+) +\d+\.\d+ +\d+\.\d+ +(\d+\.\d+)", shown)
    assert rows
    if any(float(trained) < float(pixels) for trained, pixels in rows):
        assert "below raw pixels" in prose.replace("\n", " ")


def test_the_table_of_who_else_has_a_method_has_each_once_and_none_that_is_missing() -> None:
    _, rest = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8").split("\n## Who has which method\n")
    ours, missing = rest.partition("\n## ")[0].split("\n| method | who has it |")
    rows = [re.findall(r"^\| `(\w+)`", part, re.MULTILINE) for part in (ours, missing)]
    assert len(rows[1]) == missing.count("\n| ") > 0
    assert rows[0] == sorted(ALIASES["method"])
    assert rows[1] == sorted(rows[1])
    assert not set(rows[1]) & set(ALIASES["method"])
