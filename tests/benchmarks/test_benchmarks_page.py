"""The page on benchmarks has a row and a section for each, with its defaults, metrics and a command to give."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.benchmarks.suite.settings import load_benchmarks, load_data
from raysl.benchmarks.suite.suites import load_suites
from raysl.cli.benchmark import _sort_arguments
from raysl.components import ALIASES, resolve
from raysl.config.load import load_config
from raysl.config.schema import BenchmarkConfig, DataConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("benchmarks.md", "benchmarks-of-features.md", "benchmarks-that-train.md")
PAGE = "".join((DOCS / page).read_text() for page in PAGES)
PROTOCOLS = dict(re.findall(r"^\| \[`(\w+)`\]\([\w.-]+#[\w-]+\) \| ([^|]+) \|$", PAGE, re.MULTILINE))
TABLE = r"^\| `(\w+)` \| \|\n\|---\|---\|\n\| defaults \| (.+) \|\n\| metrics \| (.+) \|\n\| command \| `(.+)` \|$"
TABLES = {name: rest for name, *rest in re.findall(TABLE, PAGE, re.MULTILINE)}
RUN = load_config("quickstart", ["benchmarks=[]"])
NUM_CLASSES = 10


def commands(text: str) -> list[str]:
    """Those of blocks, and in the text."""
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    found = [line for line in blocks.splitlines() if line.startswith("raysl benchmark")]
    return found + re.findall(r"`(raysl benchmark --checkpoint [^`]+)`", text)


def given(command: str) -> tuple[dict[str, BenchmarkConfig], DataConfig]:
    """Settings of benchmarks and images that a command asks for on a run of the quickstart."""
    words = shlex.split(re.sub(r" --(again|keep-features|list|download|root \S+)\b", "", command))[2:]
    asked = [words[place + 1] for place, word in enumerate(words) if word == "--suite"]
    suites = load_suites([name for name in asked if not name.endswith(".yaml")], "/d", RUN.data)
    places = [place for place, word in enumerate(words) if word in ("--checkpoint", "--watch", "--suite")]
    words = [word for place, word in enumerate(words) if place not in places and place - 1 not in places]
    _, names, overrides = _sort_arguments([word for word in words if not word.startswith("runs/")], [])
    of_images = [word for word in overrides if re.match(r"data[.=]", word)]
    others = [word for word in overrides if word not in of_images]
    return load_benchmarks(RUN, names, others, suites), load_data(RUN, of_images) if of_images else RUN.data


def columns(name: str) -> tuple[str, str, str, str]:
    """Protocol, defaults, metrics and command of a benchmark."""
    defaults, metrics, command = TABLES[name]
    return PROTOCOLS[name], defaults, metrics, command


def test_every_benchmark_has_a_row_and_a_section() -> None:
    assert set(PROTOCOLS) == set(TABLES) == set(ALIASES["benchmark"])


@pytest.mark.parametrize("name", sorted(ALIASES["benchmark"]))
def test_defaults_in_a_row_are_those_of_the_benchmark(name: str) -> None:
    settings = re.findall(r"`(\w+=[^`]+)`", columns(name)[1])
    assert len(settings) >= 2
    asked = load_benchmarks(RUN, [name], [f"{name}.{setting}" for setting in settings])
    assert asked[name] == resolve("benchmark", name).Config(name=name, required=True)


@pytest.mark.parametrize("name", sorted(ALIASES["benchmark"]))
def test_metrics_in_a_row_are_what_its_command_gives(name: str) -> None:
    _, _, metrics, command = columns(name)
    benchmarks, _ = given(command)
    assert set(benchmarks) == {name}
    names = re.findall(r"`([\w/]+)`", metrics)
    assert names
    assert set(names) <= set(benchmark_class(benchmarks[name]).metrics(benchmarks[name], NUM_CLASSES))


@pytest.mark.parametrize("name", sorted(ALIASES["benchmark"]))
def test_the_protocol_in_a_row_links_to_papers_that_the_benchmark_names(name: str) -> None:
    told, *_ = columns(name)
    source = resolve("benchmark", name).protocol
    papers = re.findall(r"arxiv\.org/abs/(\d+\.\d+)", told)
    assert papers
    assert [paper for paper in papers if paper not in source] == []


EVERY = [(path.name, one) for path in sorted(DOCS.glob("*.md")) for one in commands(path.read_text())]


@pytest.mark.parametrize(("doc", "command"), [pair for pair in EVERY if ".py:" not in pair[1]])
def test_a_command_asks_for_benchmarks_and_settings_that_there_are(doc: str, command: str) -> None:
    benchmarks, data = given(command)
    assert benchmarks
    assert data.image_size == RUN.data.image_size


@pytest.mark.parametrize(
    "doc", ["benchmarks-of-features.md", "coming-from-vissl.md", "coming-from-lightly-or-solo-learn.md"]
)
def test_settings_of_benchmarks_named_on_a_page_exist(doc: str) -> None:
    named = set(re.findall(rf"(?<!/)\b({'|'.join(ALIASES['benchmark'])})\.(\w+)", (DOCS / doc).read_text()))
    assert len(named) >= 5
    known = {(name, own.name) for name in ALIASES["benchmark"] for own in fields(resolve("benchmark", name).Config)}
    assert named - known == set()


def test_pages_tell_how_many_benchmarks_there_are() -> None:
    num = len(ALIASES["benchmark"])
    readme = (DOCS.parent / "README.md").read_text()
    assert re.findall(r"\| \[benchmarks\]\(docs/benchmarks\.md\) \| (\d+),", readme) == [str(num)]
    assert re.findall(r"\| \[(\d+)\]\(benchmarks\.md\):", (DOCS / "comparison.md").read_text()) == [str(num)]
    assert f"[{num} protocols](benchmarks.md)" in (DOCS / "command-line.md").read_text()
    assert {17: "seventeen", 18: "eighteen", 19: "nineteen"}[num] in PAGE
