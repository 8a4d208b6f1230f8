"""Numbers that are drawn on a GPU."""

import numpy as np
import torch

from raysl.transforms import SampleRandom
from tests.gpu.marks import CUDA, on_gpu

pytestmark = on_gpu


def test_integers_of_the_gpu_are_those_of_the_host() -> None:
    there, here = (
        SampleRandom(3, 1, np.arange(256) * 977, 5).integers_on(device, 4096, 1_281_167)
        for device in (CUDA, torch.device("cpu"))
    )
    assert torch.equal(there.cpu(), here)
