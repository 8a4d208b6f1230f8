"""What the documents say is so: their examples run, and the names in them are names of something."""

import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import raysl
from raysl.components import ALIASES, resolve
from raysl.config.docs import describe
from raysl.config.dump import write_inline
from raysl.config.schema import DataConfig
from raysl.sweeps.schema import SweepConfig
from raysl.train.callbacks.callback import configured
from tests.train.callbacks.own import train

ROOT = Path(__file__).parents[1]
FRONT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in FRONT)]
DOCS = {path.name: path.read_text() for path in PAGES}
DATA_ENGINE = ("views.md", "data.md", "ingest.md")
COMING = ("coming-from-vissl.md", "coming-from-lightly-or-solo-learn.md")


def blocks(name: str, language: str) -> list[str]:
    """Fenced blocks of a document."""
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS[name], re.MULTILINE | re.DOTALL)


def test_pages_for_users_name_no_tests() -> None:
    assert [doc for doc, text in DOCS.items() if "::test_" in text] == []


def test_every_method_has_a_row_with_its_file_and_configurations() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \|(.*)\|$", DOCS["methods.md"], re.MULTILINE)
    assert {name for name, _, _ in rows} == set(ALIASES["method"])
    for name, file, told in rows:
        assert ALIASES["method"][name].startswith(file.removeprefix("../").removesuffix(".py").replace("/", ".") + ":")
        assert {f"`cifar10/{name}`", f"`digits/{name}`"} <= set(re.findall(r"`[\w/]+`", told))
        assert f"`{name}`" in told


def test_every_source_has_a_row_and_a_command() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", DOCS["data.md"], re.MULTILINE)
    assert set(rows) == set(ALIASES["source"])
    shown = " ".join(["".join(blocks("data.md", "bash")), *blocks("data.md", "yaml")])
    assert [name for name in rows if f"data={name}" not in shown and f"name: {name}" not in shown] == []


@pytest.mark.parametrize("source", sorted(ALIASES["source"]))
def test_settings_in_the_row_of_a_source_are_its_own(source: str) -> None:
    (told,) = re.findall(rf"^\| `{source}` \| [^|]+ \| ([^|]+) \|", DOCS["data.md"], re.MULTILINE)
    known = {field.name for field in fields(resolve("source", source).Config)}
    assert set(re.findall(r"`(\w+)`", told)) <= known


def test_every_callback_has_a_row_with_its_settings_and_a_source() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) \| (.+?) \|$", DOCS["callbacks.md"], re.MULTILINE)
    assert {name for name, *_ in rows} == set(ALIASES["callback"])
    for name, _, settings, _ in rows:
        own = {field.name for field in fields(resolve("callback", name).Config)} - {"name"}
        assert set(re.findall(r"`(\w+)`", settings)) == own, name


@pytest.mark.thorough
def test_the_callbacks_of_the_page_log_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("callbacks.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["callbacks=[weight_norm.py:WeightNorm]", "callbacks.WeightNorm.every=2"]
    words += ["callbacks.spread={name: function, function: 'probe.py:spread'}"]
    state, _, lines = train(tmp_path / "run", *configured(raysl.load_config("quickstart", words)))
    norm = torch.cat([weight.detach().flatten() for weight in state.method.parameters()]).norm()
    assert lines[8]["weight_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert [step for step, line in lines.items() if "weight_norm" in line] == [2, 4, 6, 8]
    assert [step for step, line in lines.items() if line.keys() >= {"spread/std", "spread/norm"}] == [4, 8]


@pytest.mark.parametrize("doc", DATA_ENGINE)
def test_settings_of_the_pipeline_exist(doc: str) -> None:
    known = {field.name for field in fields(DataConfig)}
    prose = re.sub(r"^```.*?^```", "", DOCS[doc], flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w.])data\.(\w+)", prose)) - {"md", "dataset", "path", "train", "test", "KEY"}
    assert named - known == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_at_most_400_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 400, "a part of it may be a page of its own"


@pytest.mark.parametrize("doc", sorted(DOCS))
def test_links_lead_somewhere(doc: str) -> None:
    folder = ROOT if doc in FRONT else ROOT / "docs"
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", DOCS[doc]) if "://" not in link]
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda page: page.stem)
def test_names_on_a_page_of_the_reference_exist(page: Path) -> None:
    names = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    assert names
    assert all(pkgutil.resolve_name(name) for name in names)


def test_the_reference_has_every_public_function() -> None:
    functions = {f"raysl.{name}" for name in set(raysl.__all__) - {"methods", "losses", "transforms", "nn", "tune"}}
    assert functions <= set(re.findall(r"^::: (\S+)$", (ROOT / "docs/api/functions.md").read_text(), re.MULTILINE))


def test_the_page_of_sweeps_has_every_setting_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.+) \|$", DOCS["sweeps.md"], re.MULTILINE)
    wanted = [(row.key, write_inline(row.value), row.line) for row in describe(SweepConfig())]
    assert [row for row in rows if row in wanted] == wanted


def told_of(doc: str) -> str:
    """What a page on another library says of raysl: the right columns of its tables."""
    return "\n".join(re.findall(r"^\| .+? \| (.+) \|$", DOCS[doc], re.MULTILINE))


@pytest.mark.thorough
@pytest.mark.parametrize("doc", COMING)
def test_settings_named_to_those_who_come_from_elsewhere_exist(doc: str) -> None:
    loaded = (
        ["data.path=.", "optim=sgd"],
        ["data.path=.", "optim=larc"],
        ["data.path=.", "backbone=vit"],
        ["data.path=.", "backbone=torchvision"],
        ["data={name: torchvision, dataset: CIFAR10, root: .}"],
    )
    methods = [["data.path=.", f"method={name}"] for name in ALIASES["method"]]
    known = {row.key for words in (*loaded, *methods) for row in describe(raysl.load_config("simclr", words))}
    known |= {
        f"data.{field.name}" for name in ("image_folder", "catalog") for field in fields(resolve("source", name).Config)
    }
    named = re.findall(r"`(?:storage|seed|((?:method|backbone|data|optim|train)\.[\w.]+))", told_of(doc))
    assert len(named) > 20
    assert {key for key in named if key} - known - {"backbone.name", "backbone.safetensors", "method.views"} == set()


@pytest.mark.parametrize("doc", COMING)
def test_components_named_to_those_who_come_from_elsewhere_exist(doc: str) -> None:
    slots = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
    named = re.findall(r"`(method|backbone|data|optim)=(\w+)", told_of(doc))
    assert len(named) > 5
    assert [f"{slot}={name}" for slot, name in named if name.islower() and name not in ALIASES[slots[slot]]] == []


def write_files(doc: str, folder: Path) -> None:
    """The example files of a document: blocks that begin with their name."""
    for block in blocks(doc, "python") + blocks(doc, "yaml"):
        if name := re.match(r"# ([\w.]+\.(?:py|yaml))\n", block):
            (folder / name[1]).write_text(block)


def test_a_method_with_views_of_its_own_is_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("views.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    config = raysl.load_config("quickstart", ["method.name=solarized.py:Mine", "method.views.jitter_p=0"])
    recipe = config.method.views.recipe()
    images = [np.full((3, 20, 30), 255, np.uint8), np.zeros((3, 30, 20), np.uint8)] * 50
    views = recipe([torch.from_numpy(image) for image in images], np.arange(100), 0, 0)["global"]
    assert views.shape == (100, 2, 3, config.method.views.size, config.method.views.size)
    is_white = views.float().mean((2, 3, 4)) > 127
    assert is_white[:, 0].tolist() == [True, False] * 50
    num_solarised = int((is_white[::2, 0] != is_white[::2, 1]).sum())
    assert 1 < num_solarised < 25


def test_a_source_of_ones_own_is_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("write-a-source.md", tmp_path)
    (tmp_path / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (120, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "images" / "train.npz", images=pixels, labels=np.arange(120) % 2)
    monkeypatch.chdir(tmp_path)
    (usage,) = [block for block in blocks("write-a-source.md", "python") if "load_config" in block]
    found: dict[str, object] = {}
    exec(usage, found)
    split, rows = found["split"], found["rows"]
    assert split.num_samples == 100
    chosen = np.arange(100) * 120 // 100
    assert all(np.array_equal(image, pixels[chosen[row]]) for image, row in zip(rows.images, [0, 2], strict=True))
    assert rows.labels.tolist() == (chosen[[0, 2]] % 2).tolist()
    assert resolve("source", found["config"].data.name)(found["config"].data).optional("test") is None


def anchors(page: Path) -> set[str]:
    """The places of a page that links can name, as Python-Markdown spells them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def test_links_between_pages_name_headings_that_are_there() -> None:
    missing = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for name, anchor in re.findall(r"\]\(([\w-]+\.md)?#([^)\s]+)\)", page.read_text()):
            if anchor not in anchors(ROOT / "docs" / (name or page.name)):
                missing.append((page.name, name, anchor))
    assert missing == []
