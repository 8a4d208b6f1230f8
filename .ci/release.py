"""`python .ci/release.py v1.2.3`: check that everything says this version, and print the changelog's notes on it."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the notes; end with a message if something is missing."""
    version = sys.argv[1].removeprefix("v")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (cited,) = re.findall(r"(?m)^version: (\S+)$", (ROOT / "CITATION.cff").read_text())
    for name, stated in (("pyproject.toml", project), ("CITATION.cff", cited)):
        if stated != version:
            sys.exit(f"the tag says {version} and {name} says {stated}; set the version there, and tag that commit")
    print(notes(version, (ROOT / "CHANGELOG.md").read_text()))


def notes(version: str, changelog: str) -> str:
    """Return the section of a version, without its title."""
    sections = re.split(r"(?m)^## ", changelog)[1:]
    for section in sections:
        title, _, text = section.partition("\n")
        if re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", title):
            return text.strip()
    sys.exit(f"CHANGELOG.md has no section '## [{version}] - YEAR-MONTH-DAY'; make it of the one called Unreleased")


if __name__ == "__main__":
    main()
