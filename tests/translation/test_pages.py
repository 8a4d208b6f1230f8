"""The pages on other libraries have the tables that the translation gives."""

import inspect
import re
from ast import literal_eval

import pytest
from lightly.loss import NTXentLoss
from lightly.transforms.simclr_transform import SimCLRTransform

from tests.translation.tables import DOCS, PAGES, filled


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_translation(page: str) -> None:
    assert (DOCS / page).read_text() == filled(page), "run python -m tests.translation"


def test_the_defaults_of_lightly_are_those_of_lightly() -> None:
    page = (DOCS / "coming-from-lightly-or-solo-learn.md").read_text()
    part = page.partition("### A script of lightly")[2].partition("## solo-learn")[0]
    told = [row.split(" | ")[0] for row in part.splitlines() if row.startswith("| `")]
    transform = {name: one.default for name, one in inspect.signature(SimCLRTransform.__init__).parameters.items()}
    loss = {name: one.default for name, one in inspect.signature(NTXentLoss.__init__).parameters.items()}
    known = [*transform, *loss]
    whole = [row for row in told if "strength=0.5" not in row and "SGD" not in row and "LARS" not in row]
    values = [pair for row in whole for pair in re.findall(r"(\w+)=([\d.]+|\([^()]*\))(?=[`,;\s])", row)]
    checked = {name: literal_eval(value) for name, value in values if name in known}
    assert len(checked) >= 11
    assert {name: {**transform, **loss}[name] for name in checked} == checked
