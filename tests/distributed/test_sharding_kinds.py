"""Classes of torch that are imported late."""

import sys
from types import ModuleType

import pytest
from torch import nn

from raysl.distributed.parallel import is_sharded


def test_nothing_is_sharded_while_another_thread_imports_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("torch.distributed.fsdp"))
    assert not is_sharded(nn.Linear(1, 1))
