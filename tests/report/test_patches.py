"""The sections of a page on patches and reconstructions."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysl.report.contents import PatchNetwork, PatchSample, Reconstructions
from raysl.report.images import CELL, GAP, HEAT, grid_sheet, heat, strip
from raysl.report.patch_sections import MAX_MOMENTS, _spread, patches_section, reconstructions_section
from raysl.report.run_page import page, write_report
from tests.report.run import example
from tests.report.test_page import Outline

DRAWS = np.random.default_rng(0)


def network(title: str, heads: int | None = 2) -> PatchNetwork:
    """Two images of 3 x 3 patches."""
    colors = DRAWS.integers(0, 256, size=(2, 3, 3, 3), dtype=np.uint8)
    attention = None if heads is None else DRAWS.random((2, heads, 3, 3), dtype=np.float32)
    codes = DRAWS.normal(size=(2, 3, 3, 4)).astype(np.float32)
    return PatchNetwork(
        title=title, colors=colors, foreground=colors // 2, codes=codes, num_features=4, attention=attention
    )


def sample(**changes: object) -> PatchSample:
    images = DRAWS.integers(0, 256, size=(2, 12, 12, 3), dtype=np.uint8)
    networks = [network("before training, <seed 3>"), network("after training, step 7")]
    return replace(PatchSample(images=images, networks=networks, stage="tokens"), **changes)  # type: ignore[arg-type]


def data_of(text: str) -> dict[str, object]:
    match = re.search(r'<script type="application/json" id="codes">(.*?)</script>', text)
    assert match is not None
    return json.loads(match[1])  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_the_page_has_both_networks_and_only_its_own_script() -> None:
    text = page(example(patches=sample()))
    outline = Outline(text)
    assert outline.headings[3:6] == ["Views", "Nearest neighbours", "Patches"]
    for words in ("Before training, <seed 3>", "After training, step 7", "Held-out images", "3 × 3 patches"):
        assert words in outline.text
    assert "<seed" not in text
    addresses = [value for name, value in outline.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:image/", "#")) for value in addresses)
    assert text.count("<script") == 2, "the data, and what draws it"
    assert "script-src 'sha256-" in text
    assert "script-src" not in page(example())


def test_codes_are_read_back_from_the_page_to_within_a_step() -> None:
    shown = sample()
    data = data_of(patches_section(example(patches=shown)))
    assert data["heat"] == [list(stop) for stop in HEAT]
    for stored, given in zip(data["networks"], shown.networks, strict=True):  # type: ignore[call-overload]
        levels = np.frombuffer(base64.b64decode(stored["codes"]), np.int8).reshape(2, 3, 3, 4)
        assert stored["grid"] == [3, 3]
        assert stored["title"] == given.title
        scales = np.array(stored["scales"])
        assert (np.abs(levels * scales - given.codes) <= 0.51 * scales + 1e-3 * np.abs(given.codes)).all()


def test_no_text_ends_the_data() -> None:
    text = patches_section(example(patches=sample(networks=[network("</script><script>alert(1)")])))
    assert data_of(text)["networks"][0]["title"] == "</script><script>alert(1)"  # type: ignore[index]
    assert text.count("<script") == 1
    assert text.count("</script>") == 1


def test_networks_without_a_class_token_have_no_attention_and_training_images_are_called_so() -> None:
    networks = [network("before", None), network("after", None)]
    shown = sample(networks=networks, is_held_out=False, stage="res5", notes=["weights of <old> are gone"])
    text = patches_section(example(patches=shown))
    assert "Attention" not in text
    assert "Training images" in text
    assert "Map <code>res5</code>" in text
    assert "weights of &lt;old&gt; are gone" in text
    assert "strongest" not in text, "the codes are as wide as the features"
    wide = [replace(one, num_features=9) for one in networks]
    assert "the strongest 4 directions" in patches_section(example(patches=sample(networks=wide)))


def test_parts_that_are_not_there_leave_no_section() -> None:
    assert patches_section(example()) == reconstructions_section(example()) == ""
    assert patches_section(example(patches=sample(networks=[]))) == ""


def reconstructed(steps: range) -> Reconstructions:
    grey = [np.full((2, 4, 4, 3), level, np.uint8) for level in (10, 20)]
    return Reconstructions(
        images=grey[0], seen=grey[1], predicted={step: np.full((2, 4, 4, 3), 30 + step, np.uint8) for step in steps}
    )


def test_predictions_stand_in_the_order_of_their_steps() -> None:
    text = reconstructions_section(example(reconstructions=reconstructed(range(0, 9, 4))))
    heads = re.findall(r"<span>(.*?)</span>", text)
    assert heads == ["image", "seen", "step 0", "step 4", "step 8"]
    assert "held-out images" in text
    assert [*_spread(list(range(0, 1001, 10)))] == [0, 140, 290, 430, 570, 710, 860, 1000]
    assert len(_spread(list(range(100)))) == MAX_MOMENTS


def test_a_sheet_has_a_column_a_heading() -> None:
    rows = [[np.full((4, 4, 3), 10 * row + column, np.uint8) for column in range(3)] for row in range(2)]
    sheet = grid_sheet(rows, ["a", "b", "c"])
    pixels = np.asarray(sheet.picture)
    places = [CELL // 2 + number * (CELL + GAP) for number in range(3)]
    assert [[int(pixels[y, x, 0]) for x in places] for y in places[:2]] == [[0, 1, 2], [10, 11, 12]]
    assert sum(width for _, width in sheet.columns) == sheet.picture.width
    assert strip(rows[0]).size == (sheet.picture.width, CELL)


def test_more_attention_is_brighter() -> None:
    light = heat(np.linspace(0, 1, 50, dtype=np.float32)).astype(float) @ (0.3, 0.6, 0.1)
    assert (np.diff(light) > 0).all()
    assert (heat(np.array([-1.0, 2.0], np.float32)) == heat(np.array([0.0, 1.0], np.float32))).all()


@pytest.mark.thorough
def test_report_json_holds_no_pictures(tmp_path: Path) -> None:
    write_report(example(patches=sample(), reconstructions=reconstructed(range(1))), tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert not {"patches", "reconstructions"} & stored.keys()
