import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raysl.config.schema import DataConfig
from raysl.data.ingest.inspect import Inspection, inspect
from raysl.data.source import Rows, Source, Split, runs
from raysl.data.sources.image_folder import ImageFolder
from raysl.hashing import Int64s
from raysl.storage.folder import Folder


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(shade: int, size: tuple[int, int] = (12, 10)) -> Image.Image:
    return Image.new("RGB", size, (shade, 0, 0))


DEEP = Image.fromarray(np.full((10, 12), 40_000, np.uint16))
FILES = {
    "train/cat/bad.png": encoded(plain(1), "PNG")[:30],
    "train/cat/cmyk.jpg": encoded(plain(2).convert("CMYK"), "JPEG"),
    "train/cat/gray.png": encoded(plain(3).convert("L"), "PNG"),
    "train/cat/long.png": encoded(plain(4, (300, 20)), "PNG"),
    "train/dog/alpha.png": encoded(plain(5).convert("RGBA"), "PNG"),
    "train/dog/deep.png": encoded(DEEP, "PNG"),
    "train/dog/really_png.jpg": encoded(plain(7), "PNG"),
    "train/dog/small.png": encoded(plain(8, (9, 7)), "PNG"),
    "train/empty/a.png": encoded(plain(9), "PNG"),
    "val/cat/1.png": encoded(plain(9), "PNG"),
    "val/dog/2.png": encoded(plain(9, (7, 7)), "PNG"),
    "val/dog/3.png": encoded(plain(9, (7, 7)), "PNG"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def found(folder: Path) -> Inspection:
    return inspect(ImageFolder.Config(path=str(folder)))


def test_each_odd_image_has_one_line_that_says_why(folder: Path, found: Inspection) -> None:
    lines = {str(Path(f.name).relative_to(folder)): "; ".join(f.problems) for f in found.findings}
    assert lines.pop("train/cat/bad.png").startswith("corrupt: ")
    assert lines == {
        "train/cat/long.png": "elongated: 20 x 300",
        "train/dog/really_png.jpg": "wrong ending: .jpg holds PNG",
        "train/dog/small.png": "tiny: 7 x 9",
        "val/cat/1.png": "duplicate: the same bytes as train 8",
        "val/dog/2.png": "tiny: 7 x 7",
        "val/dog/3.png": "tiny: 7 x 7; duplicate: the same bytes as test 1",
    }
    assert found.num_corrupt == 1
    assert [finding.index for finding in found.findings if finding.split == "train"] == [0, 3, 6, 7]


@pytest.mark.parametrize(("background", "blank"), [("white", ["2"]), ("red", ["1"]), ("none", [])])
def test_an_image_that_is_not_seen_on_the_background_is_odd(tmp_path: Path, background: str, blank: list[str]) -> None:
    for name, color in (("1", (255, 0, 0, 90)), ("2", (255, 255, 255, 90)), ("3", (0, 0, 0, 90))):
        (tmp_path / f"{name}.png").write_bytes(encoded(Image.new("RGBA", (12, 12), color), "PNG"))
    (tmp_path / "opaque.png").write_bytes(encoded(Image.new("RGB", (12, 12), (255, 255, 255)), "PNG"))
    found = inspect(ImageFolder.Config(path=str(tmp_path), background=background))
    assert [Path(f.name).stem for f in found.findings] == blank
    assert all(f.problems == ("blank: it has no pixel that differs from data.background",) for f in found.findings)
    assert found.totals["train"].kinds["blank"] == len(blank)


def test_totals_count_formats_colours_problems_and_classes(found: Inspection) -> None:
    train, test = found.totals["train"], found.totals["test"]
    assert (train.num_images, test.num_images) == (9, 3)
    assert train.kinds == {
        "PNG": 7,
        "JPEG": 1,
        "gray": 2,
        "16-bit": 1,
        "CMYK": 1,
        "alpha": 1,
        "corrupt": 1,
        "elongated": 1,
        "tiny": 1,
        "wrong ending": 1,
    }
    assert test.kinds == {"PNG": 3, "tiny": 2, "duplicate": 2}
    assert train.classes == {"cat": 4, "dog": 4, "empty": 1}
    assert "empty" in test.classes, "a class without images is told of"
    assert test.classes["empty"] == 0


def test_the_table_ends_with_the_totals(found: Inspection) -> None:
    lines = found.table().splitlines()
    assert len(lines) == len(found.findings) + 7
    assert lines[-7].startswith("train       9 images: PNG 7, ")
    assert lines[-6].startswith("            data.mean=[")
    assert lines[-2:] == ["            by class: cat 1, dog 2, empty 0", "corrupt     1"]


def test_the_lists_are_written_as_json(found: Inspection, tmp_path: Path) -> None:
    found.write(Folder(str(tmp_path / "lists")))
    lines = [json.loads(line) for line in (tmp_path / "lists" / "check.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == [finding.index for finding in found.findings]
    totals = json.loads((tmp_path / "lists" / "check.json").read_text())
    assert totals["test"].pop("settings").startswith("data.mean=[")
    assert totals["test"] == {
        "images": 3,
        "kinds": {"PNG": 3, "tiny": 2, "duplicate": 2},
        "classes": {"cat": 1, "dog": 2, "empty": 0},
        "notes": [],
    }


@dataclass(frozen=True, kw_only=True)
class ManyConfig(DataConfig):
    name: str = f"{__file__}:Many"
    num_images: int = 40


class Many(Source):
    """More images than a part has, as pixels; the last is the first again, and every class has its own number."""

    Config = ManyConfig

    def split(self, name: str) -> Split | None:
        return _ManySplit(self.config.num_images) if name == "train" else None


class _ManySplit(Split):
    classes = tuple(f"class {number}" for number in range(25))
    is_random_access = True
    fingerprint = "many"

    def __init__(self, num_images: int) -> None:
        self.unit_sizes = runs(num_images)

    def read(self, index: Int64s) -> Rows:
        images: list[Any] = [np.full((8, 8), row % 39, np.uint8) for row in index.tolist()]
        labels = np.where(index == 5, -1, index % 24)
        return Rows(images, labels, [f"image {row}" for row in index.tolist()])


def test_parts_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.data.ingest.inspect.PART_ROWS", 16)
    found = inspect(ManyConfig())
    assert [str(finding) for finding in found.findings] == ["train 39 image 39: duplicate: the same bytes as train 0"]
    assert found.totals["train"].kinds == {"pixels": 40, "gray": 40, "duplicate": 1}
    assert found.totals["train"].classes["unlabelled"] == 1
    assert "26 classes of 0 (class 24) to 2 (class 0) images, half of them up to 2" in found.table()


def test_a_source_without_images_has_nothing_to_tell() -> None:
    found = inspect(ManyConfig(num_images=0))
    assert (found.findings, found.totals["train"].num_images) == ([], 0)


def test_what_is_odd_about_the_files_stands_in_the_table_and_in_the_totals(tmp_path: Path) -> None:
    (tmp_path / "images" / "usr" / "icons").mkdir(parents=True)
    (tmp_path / "images" / "usr" / "icons" / "a.png").write_bytes(encoded(plain(1), "PNG"))
    os.symlink("a.png", tmp_path / "images" / "usr" / "icons" / "b.png")
    found = inspect(ImageFolder.Config(path=str(tmp_path / "images")))
    lines = [line.strip() for line in found.table().splitlines()]
    one_class = f"all 2 images are one class, 'usr'; did you mean data.path={tmp_path}/images/usr/icons?"
    assert one_class in lines
    assert any(line.startswith("1 of the 2 images of ") for line in lines)
    found.write(Folder(str(tmp_path / "lists")))
    assert one_class in json.loads((tmp_path / "lists" / "check.json").read_text())["train"]["notes"]
