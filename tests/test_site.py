"""The site: references made from the code, pages for any generator, search for parts of names, also from a disk."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from raysl.components import ALIASES, resolve
from raysl.config.docs import describe
from raysl.config.load import load_config
from raysl.config.schema import ClusterConfig, TrainConfig
from raysl.sweeps.schema import SweepConfig

ROOT = Path(__file__).parents[1]
NODES = {"method": "method", "backbone": "backbone", "source": "data", "optimizer": "optim"}
NAMED = {"benchmark": "benchmarks", "callback": "callbacks"}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / ".ci" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(site: ModuleType) -> dict[str, list[tuple[str, ...]]]:
    """Type, range, default and meaning by setting, one for each component that has it."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for name in site.PAGES:
        for line in re.findall(r"^\| `(.+) \|$", site.settings_page(name), re.MULTILINE):
            key, *rest = re.split(r"(?<!\\) \| ", line)
            rows.setdefault(key.rstrip("`"), []).append(tuple(text.replace("\\|", "|") for text in rest))
    return rows


@pytest.mark.thorough
def test_every_setting_is_in_the_reference_with_its_type_range_default_and_meaning(
    site: ModuleType,
    rows: dict[str, list[tuple[str, ...]]],
) -> None:
    configs = [("train.", TrainConfig()), ("cluster.", ClusterConfig()), ("", SweepConfig())]
    for slot, node in [*NODES.items(), *NAMED.items()]:
        for name in ALIASES[slot]:
            prefix = f"{node}.{name}." if slot in NAMED else f"{node}."
            configs.append((prefix, site.declared(resolve(slot, name).Config, name)))
    for prefix, config in configs:
        for row in describe(config):
            if row.key != "name" or not prefix:
                shared = f"{prefix.split('.')[0]}.*.{row.key}"
                found = rows.get(prefix + row.key) or rows[shared]
                assert any((kind, range_) == (row.kind, row.range) for kind, range_, _, _ in found), row
                assert any(meaning == row.doc for *_, meaning in found), row


@pytest.mark.thorough
def test_a_row_of_the_reference_says_what_a_setting_takes(rows: dict[str, list[tuple[str, ...]]]) -> None:
    ((kind, range_, default, meaning),) = rows["train.batch_size"]
    assert (kind, range_, default) == ("int", "at least 1", "`256`")
    assert meaning
    assert rows["train.augment_on" if "train.augment_on" in rows else "data.augment_on"][0][0].startswith("'auto' or")


def test_type_and_range_add_up_to_what_the_command_prints() -> None:
    for row in describe(load_config("quickstart")):
        assert row.line.startswith(row.doc)
        assert row.line.lower().removeprefix(row.doc.lower()).strip(" .") == row.range.lower()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optim.layer_decay", ["optim", "layer", "decay"]),
        ("raysl.losses.nt_xent(z)", ["raysl", "losses", "nt", "xent", "z"]),
        ("TrainConfig", ["Train", "Config"]),
        ("'knn.k=[20,200]'", ["knn", "k", "20", "200"]),
        ("a rate of 0.75", ["a", "rate", "of", "0.75"]),
    ],
)
def test_search_splits_names_at_their_signs_and_capitals(text: str, words: list[str]) -> None:
    assert list(filter(None, re.split(separator(), text))) == words


def separator() -> str:
    """Where the search of the site splits words."""
    plugins = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["plugins"]
    assert "offline" in plugins  # the index is a script, which a browser loads from a disk, too
    return str(plugins[0]["search"]["separator"])


@pytest.mark.thorough
def test_pages_written_for_another_generator_are_whole(site: ModuleType, tmp_path: Path) -> None:
    site.write_pages(tmp_path)
    settings = yaml.safe_load((tmp_path / "mkdocs.yml").read_text())
    assert "hooks" not in settings
    pages = {path.relative_to(tmp_path / "docs").as_posix(): path for path in (tmp_path / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", str(settings["nav"]))) <= set(pages)
    for page in pages.values():
        prose = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_no_table_of_methods_or_benchmarks_stands_without_a_heading() -> None:
    methods = (ROOT / "docs" / "methods.md").read_text()
    families = re.findall(r"^## (.+)\n\n.+\n\n\| method ", methods, re.MULTILINE)
    assert len(families) == methods.count("| method | paper |") == 7
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\|.*\|$", benchmarks.partition("## What comes out")[0], re.MULTILINE)
    assert {len(re.split(r"(?<!\\)\|", row)) - 2 for row in rows} == {2}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def phone() -> Iterator[Any]:
    """A browser with the width of a phone."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{word}")
    phone = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    phone.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield phone
    phone.quit()


def shown(phone: Any, selector: str) -> list[Any]:
    """Return the elements of a page when there are any."""
    from selenium.webdriver.support.ui import WebDriverWait

    found: list[Any] = WebDriverWait(phone, 30).until(lambda _: phone.find_elements("css selector", selector))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", ["layer_decay", "optim.layer_decay", "decay"])
def test_search_finds_parts_of_names_in_a_folder_on_a_disk(built: Path, phone: Any, words: str) -> None:
    phone.get((built / "index.html").as_uri() + f"?q={words}")
    links = [link.get_attribute("href") for link in shown(phone, ".md-search-result__link")]
    assert any("settings" in link for link in links)
    assert [
        line["message"] for line in phone.get_log("browser") if "http" in line["message"]
    ] == []  # nothing is fetched


@pytest.mark.slow
@pytest.mark.parametrize("name", ["methods", "benchmarks", "api/settings"])
def test_a_table_that_scrolls_on_a_phone_has_a_shadow_and_the_page_does_not_scroll(
    built: Path, phone: Any, name: str
) -> None:
    phone.get((built / f"{name}.html").as_uri())
    boxes = shown(phone, ".md-typeset__scrollwrap")
    assert all("linear-gradient" in box.value_of_css_property("background-image") for box in boxes)
    is_wide = "return arguments[0].scrollWidth > arguments[0].clientWidth"
    assert any(phone.execute_script(is_wide, box) for box in boxes)
    assert phone.execute_script("return document.documentElement.scrollWidth") <= 390
