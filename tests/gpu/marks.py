"""What marks the tests that need a GPU: `pytest -m gpu`. They need neither Ray nor numba, only one card."""

import pytest
import torch

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]

CUDA = torch.device("cuda", 0)
