"""Setting up a process that trains."""

import subprocess
import sys
from dataclasses import replace

import pytest

from raysl.config.load import load_config
from raysl.train.process import import_compiler_meanwhile


def test_the_compiler_is_imported_beside_the_start_of_workers_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("raysl.train.process.import_module", imported.append)
    train = load_config("quickstart").train
    assert import_compiler_meanwhile(train, 1) is None
    for thread in (import_compiler_meanwhile(train, 2), import_compiler_meanwhile(replace(train, compile=True), 1)):
        assert thread is not None
        thread.join()
    assert imported == ["torch._dynamo"] * 2


@pytest.mark.cluster
def test_a_worker_does_not_wait_for_triton() -> None:
    code = "import sys, raysl.methods.distill, raysl.runs.worker; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
