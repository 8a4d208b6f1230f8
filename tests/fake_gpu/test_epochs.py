"""What looks at all images between epochs waits for a GPU as often for few images as for many."""

import pytest

from raysl.data.stream import loader as loader_module
from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.training import trained

pytestmark = [needs_pretended_gpu, pytest.mark.slow]


def waits(name: str, num_images: int) -> list[str]:
    """Places of the waits before the first epoch, which has the images 16 at a time."""
    seen = trained(name, f"data.limit={num_images}", "train.end=1st")
    assert seen.watch.errors == []
    return [event.place for event in seen.watch.events if event.is_wait and event.phase == "before epoch"]


@pytest.mark.parametrize("name", ["clusterfit", "colorization", "deepcluster", "deepcluster_v2"])
def test_waits_before_an_epoch_do_not_grow_with_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "PLAIN_ROWS", 16)
    assert waits(name, 248) == waits(name, 62)
