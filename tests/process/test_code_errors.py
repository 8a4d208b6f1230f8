"""Which exceptions a retry would meet again, and that they are told with the file and line of their user."""

from pathlib import Path

import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfMemoryError, RaySystemError, RayTaskError

from raysl.components import resolve_function
from raysl.errors import CodeError, ConfigError, DamagedData, RunFailed, StorageError
from raysl.process.code_errors import MAX_LENGTH, code_error, explaining_code, is_of_user

MINE = """
import torch

class Odd(Exception):
    pass

def shapes():
    return torch.zeros(2, 3) @ torch.zeros(2, 3)

def key():
    return {}["label"]

def odd():
    raise Odd("an odd number")

def path():
    return open("/no/such/labels.json")

def network():
    raise ConnectionResetError("peer")

def behind_a_network():
    try:
        network()
    except OSError as error:
        raise ValueError("no labels") from error
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


def raised(mine: str, name: str) -> Exception:
    """What a function of the user raises."""
    with pytest.raises(Exception) as caught:
        resolve_function(f"{mine}:{name}", "function")()
    return caught.value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shapes", "mine.py, line 8, in shapes: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("key", "mine.py, line 11, in key: KeyError: 'label'"),
        ("odd", "mine.py, line 14, in odd: Odd: an odd number"),
        ("path", "mine.py, line 17, in path: FileNotFoundError: [Errno 2] No such file"),
    ],
)
def test_an_exception_of_a_users_code_is_told_with_its_file_and_line(mine: str, name: str, message: str) -> None:
    error = raised(mine, name)
    assert str(code_error(error)).startswith(message)
    assert is_of_user(error)


@pytest.mark.parametrize("name", ["network", "behind_a_network"])
def test_an_exception_that_a_network_has_caused_may_pass(mine: str, name: str) -> None:
    assert code_error(raised(mine, name)) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("NCCL communicator was aborted"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
        OSError("Input/output error"),
        AttributeError("partially initialized module 'torch.distributed.fsdp' has no attribute 'FSDPModule'"),
        TimeoutError(),
        ActorDiedError(),
        OutOfMemoryError("the node ran out of memory"),
        RayTaskError("read", "", ValueError("of another task")).as_instanceof_cause(),
        StorageError("503"),
        ConfigError("optim.lr: 0 is out of range"),
        RunFailed("the loss is not finite"),
        DamagedData("a.parquet"),
    ],
)
def test_an_exception_of_a_machine_and_a_message_of_raysl_stay_as_they_are(error: Exception) -> None:
    assert code_error(error) is None


def test_a_module_that_a_worker_lacks_is_an_error_of_code() -> None:
    lacking = RaySystemError(ModuleNotFoundError("No module named 'mine_alone'"))  # type: ignore[no-untyped-call]
    try:
        raise lacking.client_exc
    except ModuleNotFoundError:
        assert "ModuleNotFoundError: No module named 'mine_alone'" in str(code_error(lacking))


def test_a_file_that_is_not_python_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\ndef (:\n")
    with (
        pytest.raises(CodeError, match=r"^mine\.py, line 2: SyntaxError: "),
        explaining_code(of_users=True),
    ):
        resolve_function(f"{tmp_path}/mine.py:f", "function")


def test_exceptions_of_libraries_alone_can_be_left_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), explaining_code(of_users=True):
        _ = 1 / 0


def test_a_long_message_is_one_line_of_limited_length() -> None:
    try:
        raise ValueError("very long\n" * 1000)
    except ValueError as error:
        message = str(code_error(error))
    assert "\n" not in message
    assert message.endswith("...")
    assert len(message) < MAX_LENGTH + 150
