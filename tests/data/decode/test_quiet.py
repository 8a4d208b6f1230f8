"""What libraries say to programmers does not reach users."""

import subprocess
import sys

import pytest

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
