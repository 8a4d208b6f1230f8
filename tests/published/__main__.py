"""`python -m tests.published` writes the tables of departures into docs/recipes.md; with names it prints our facts."""

import sys

from tests.published.files import FOLDER, PAGE, Published, text, with_table
from tests.published.measure import measured
from tests.published.recipe import Recipe

if len(sys.argv) == 1:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
for name in sys.argv[1:]:
    recipe = Recipe(name)
    if (FOLDER / f"{name}.yaml").is_file():
        published = Published.read(name)
        recipe = Recipe(name, published.images, published.build)
    for key, value in measured(recipe).items():
        print(f"{name}: {key}: {text(value)}")
