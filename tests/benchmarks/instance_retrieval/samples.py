"""Tiny retrieval datasets in their true layouts: objects are patterns, images show them at some place."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

BOX = [8.0, 4.0, 40.0, 36.0]


def save(path: Path, thing: int, seed: int = 0, size: tuple[int, int] = (48, 64)) -> None:
    """A thing's pattern of 32 pixels, in colours of its own, before noise; of another seed elsewhere in other noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1000 * thing + seed)
    random = np.random.default_rng(thing)
    cells = (random.integers(0, 200, 3) + random.integers(0, 56, (8, 8, 3))).clip(0, 255)
    pattern = cells.repeat(4, axis=0).repeat(4, axis=1)
    pixels = noise.integers(100, 140, (*size, 3))
    top, left = (4, 8) if seed == 0 else noise.integers(0, (size[0] - 32, size[1] - 32))
    pixels[top : top + 32, left : left + 32] = pattern
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


def revisited(folder: Path, dataset: str = "roxford5k", protocol: int = 2, things: Sequence[int] = (0, 1, 2)) -> Path:
    """Of each thing one query, two easy images, one hard one and one of junk."""
    images, answers = [], []
    for thing in things:
        first = len(images)
        for copy in range(4):
            images.append(f"thing{thing}_{copy}")
            save(folder / dataset / "jpg" / f"thing{thing}_{copy}.jpg", thing, copy + 1, (48, 64 + 8 * copy))
        save(folder / dataset / "jpg" / f"query{thing}.jpg", thing)
        easy = np.array([first, first + 1]) if thing else [first, first + 1]
        answers.append({"bbx": list(map(np.float64, BOX)), "easy": easy, "hard": [first + 2], "junk": [first + 3]})
    truth = {"imlist": images, "qimlist": [f"query{thing}" for thing in things], "gnd": answers}
    (folder / dataset / f"gnd_{dataset}.pkl").write_bytes(pickle.dumps(truth, protocol=protocol))
    return folder


def buildings(folder: Path, prefix: str = "oxc1_") -> Path:
    """Of each of three things a query that is in the database, a good one, one that is ok and one of junk."""
    for thing in range(3):
        for copy in range(4):
            save(folder / "jpg" / f"all_{thing}_00{copy}.jpg", thing, copy)
        box = " ".join(map(str, BOX))
        texts = {"query": f"{prefix}all_{thing}_000 {box}\n", "good": f"all_{thing}_000\nall_{thing}_001\n"}
        texts |= {"ok": f"all_{thing}_002\n", "junk": f"all_{thing}_003\n" if thing else ""}
        for kind, text in texts.items():
            (folder / "gt").mkdir(exist_ok=True)
            (folder / "gt" / f"all_{thing}_1_{kind}.txt").write_text(text)
    return folder


def instre(folder: Path) -> Path:
    """Of each of twelve things a query and two images; counts are Matlab's."""
    images, queries, answers = [], [], []
    for thing in range(12):
        for copy in (1, 2):
            images.append(f"INSTRE-S1/{thing:02d}a/{copy:03d}.jpg")
            save(folder / images[-1], thing, copy)
        queries.append(f"INSTRE-S1/{thing:02d}a/100.jpg")
        save(folder / queries[-1], thing)
        answers.append({"ok": np.array([2 * thing + 1, 2 * thing + 2]), "bbx": np.array(BOX)})
    cells: dict[str, Any] = {name: np.empty(len(of), object) for name, of in (("imlist", images), ("qimlist", queries))}
    cells["imlist"][:], cells["qimlist"][:] = images, queries
    kinds = [("ok", object), ("bbx", object)]
    cells["gnd"] = np.array([(answer["ok"], answer["bbx"]) for answer in answers], dtype=kinds)
    savemat(folder / "gnd_instre.mat", cells)
    return folder


def copydays(folder: Path) -> Path:
    """Three originals, copies of two kinds, and five distractors."""
    for thing in range(3):
        save(folder / "original" / f"{2000 + thing}00.jpg", thing)
        save(folder / "strong" / f"{2000 + thing}01.jpg", thing, 1)
        save(folder / "crops" / "50" / f"{2000 + thing}02.jpg", thing, 2)
    for thing in range(5):
        save(folder / "distractors" / f"{2000 + thing}00.jpg", 10 + thing)
    return folder
