"""What libraries say to programmers does not reach users."""

import ctypes
import io
import platform
import subprocess
import sys
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

from raysl.data.decode import quiet
from raysl.data.decode.images import read_images
from raysl.data.decode.quiet import quiet_libraries
from raysl.data.source import Rows, Split, runs
from raysl.hashing import Int64s

PALETTE = """
import io
from PIL import Image
from raysl.data.decode.decode import decode
image, file = Image.new("P", (8, 8)), io.BytesIO()
image.putpalette(bytes(range(256)) * 3)
image.save(file, "PNG", transparency=bytes([0] * 10 + [255] * 246))
print(tuple(decode(file.getvalue()).shape))
"""


@pytest.mark.cluster
def test_pillows_warning_of_palettes_does_not_reach_the_screen() -> None:
    done = subprocess.run([sys.executable, "-c", PALETTE], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(3, 8, 8)\n", "")


@pytest.fixture
def stream() -> ctypes.c_void_p:
    """C's variable stderr."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("C's stderr is a variable in glibc alone")
    return ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stderr")


def test_a_block_inside_another_leaves_the_outer_one_quiet(stream: ctypes.c_void_p) -> None:
    shown = stream.value
    with quiet_libraries():
        dropped = stream.value
        with quiet_libraries():
            assert stream.value == dropped
        assert stream.value == dropped
    assert stream.value == shown != dropped


def test_c_is_heard_again_when_the_last_thread_is_out(stream: ctypes.c_void_p) -> None:
    shown = stream.value
    is_inside, may_leave = Event(), Event()

    def stay() -> None:
        with quiet_libraries():
            is_inside.set()
            may_leave.wait(60)

    thread = Thread(target=stay)
    thread.start()
    assert is_inside.wait(60)
    with quiet_libraries():
        pass
    assert stream.value != shown
    may_leave.set()
    thread.join()
    assert stream.value == shown


def test_a_failure_inside_ends_the_quiet(stream: ctypes.c_void_p) -> None:
    shown = stream.value
    with pytest.raises(OSError), quiet_libraries(), quiet_libraries():
        raise OSError
    assert stream.value == shown


class SameImage(Split):
    """Five times the same JPEG file."""

    unit_sizes = runs(5, 5)
    classes = ()

    def read(self, index: Int64s) -> Rows:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "JPEG")
        return Rows([file.getvalue()] * len(index), index, [""] * len(index))


def test_a_batch_of_images_enters_the_quiet_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[None] = []
    real = quiet._quiet
    monkeypatch.setattr(quiet, "_quiet", lambda: (blocks.append(None), real())[1])
    assert len(read_images(SameImage(), np.arange(5)).pictures[0].images) == 5
    assert len(blocks) == 1
