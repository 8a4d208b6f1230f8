"""Changed files make another result; their order on the disk does not."""

import os
from pathlib import Path

from raysl.benchmarks.robustness import Robustness
from raysl.benchmarks.semi_supervised import SemiSupervised
from raysl.benchmarks.suite.locations import content_of


def test_a_changed_added_or_lost_file_is_another_content(tmp_path: Path) -> None:
    (tmp_path / "set" / "n01").mkdir(parents=True)
    image = tmp_path / "set" / "n01" / "0.jpg"
    image.write_bytes(b"one")
    config = Robustness.Config(imagenet_a=str(tmp_path / "set"))
    seen = [content_of(config)]
    assert set(seen[0]) == {"imagenet_a"}
    assert content_of(config) == seen[0]
    os.utime(image, ns=(1, 1))
    seen.append(content_of(config))
    (tmp_path / "set" / "n01" / "1.jpg").write_bytes(b"two")
    seen.append(content_of(config))
    assert len({found["imagenet_a"] for found in seen}) == 3


def test_lists_count_and_what_is_not_there_or_not_named_does_not(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("a.png\n")
    found = content_of(SemiSupervised.Config(lists={"one": str(tmp_path / "1.txt")}))
    assert set(found) == {"lists"}
    assert content_of(Robustness.Config(imagenet_a=str(tmp_path / "nowhere"))) == {}
    assert content_of(Robustness.Config()) == {}
