"""Write the tables of the page on VISSL: `python -m tests.translation`."""

from tests.translation.tables import DOCS, PAGES, filled

for page in PAGES:
    (DOCS / page).write_text(filled(page))
