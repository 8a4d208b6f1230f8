"""Reading files of weights that others wrote, without running code from them."""

import argparse
import pickle
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pyarrow import fs
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from raysl.checkpoint.checkpoint_folder import META_FILE
from raysl.errors import ConfigError
from raysl.process.temporary import temporary_folder
from raysl.storage.addresses import absolute, cut, open_uri, stat_uri
from raysl.storage.folder import Folder
from raysl.storage.whole import copy_whole
from raysl.trained import trained_hint

TRUST = "If you trust the file, say trust_code=True, on the command line --trust-code"
_LENGTH = 8  # bytes of a safetensors file that hold the length of its header, which begins with a brace
_ZIP = b"PK\x03\x04"  # first bytes of a file of torch.save
_BROKEN = (
    *(OSError, RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError),
    *(pickle.UnpicklingError, struct.error),
)


def is_checkpoint(uri: str) -> bool:
    """Whether a URI leads to a run or a checkpoint of raysl, and not to one file."""
    _, info = stat_uri(absolute(uri))
    if info.type == fs.FileType.NotFound:
        raise ConfigError(
            f"nothing is at {uri!r}; give a file of weights, or a run or checkpoint of raysl{trained_hint()}"
        )
    if info.type != fs.FileType.Directory:
        return False
    names = Folder(uri).names()
    if META_FILE in names or any(name.startswith("checkpoint_") for name in names):
        return True
    files = [
        name for name in names if name.endswith((".safetensors", ".pth", ".pt", ".tar", ".torch", ".bin", ".ckpt"))
    ]
    advice = f"name one of its files, such as {files[0]}" if files else "give a file of weights"
    raise ConfigError(f"{uri!r} is a folder without a run or checkpoint of raysl; {advice}")


@contextmanager
def local_file(uri: str) -> Iterator[Path]:
    """Give a local path to a file: its own where it is local, else that of a copy, removed afterwards."""
    address = absolute(uri)
    system, path = open_uri(address)
    if isinstance(system, fs.LocalFileSystem):
        yield Path(path)
        return
    with temporary_folder("weights") as folder:
        copy = Path(folder) / cut(address)[1]
        copy_whole(address, copy)
        yield copy


def read_tree(path: Path, trust_code: bool = False) -> dict[str, Any]:
    """Read a file of weights: tensors by name, in nested dictionaries where it was written so.

    The first bytes tell the format: safetensors, or that of `torch.save`, also the one before 2020.

    Args:
        trust_code: whether code that the file names may be imported and run, where it holds more than tensors.

    Raises:
        ConfigError: if it is another kind of file, is cut off, or needs code that is not trusted.
    """
    try:
        content = load_file(path) if is_safetensors(path) else _load(path, trust_code)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} holds objects of {error.name!r}, which is not installed here; install it") from error
    except (*_BROKEN, SafetensorError) as error:
        reason = _reason(error)
        raise ConfigError(
            f"{path} is not a file of weights, or was cut off: it is in the format of neither torch.save nor "
            f"safetensors ({reason}); give another file"
        ) from error
    if isinstance(content, nn.Module):  # which only trusted code can make
        content = content.state_dict()
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{path} holds a {type(content).__name__}, not tensors by name; give a file with a state dict"
        )
    return dict(content)


def is_safetensors(path: Path) -> bool:
    """Whether a file is in the format of safetensors: by its first bytes, or its ending where they tell nothing."""
    with path.open("rb") as file:
        start = file.read(_LENGTH + 1)
    if start.startswith(_ZIP):
        return False
    # 8 bytes with the length of the header, then the header itself, a JSON object that ends within the file
    is_like = start[_LENGTH:] == b"{" and int.from_bytes(start[:_LENGTH], "little") <= path.stat().st_size - _LENGTH
    return is_like or path.suffix == ".safetensors"


def _reason(error: Exception) -> str:
    """Return the reason of an error without torch's advice to run what is in the file."""
    text = str(error)
    if "Weights only load failed" in text:
        return "a pickle that torch.save did not write"
    if isinstance(error, LookupError):  # of the pickle reader, with a byte that it does not know
        return "its content is no pickle"
    return next(iter(text.splitlines()), type(error).__name__)


def _load(path: Path, trust_code: bool) -> Any:
    # torch gets no path, as its ending would tell it the format.
    if trust_code:
        with path.open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=False)
    try:
        with (
            path.open("rb") as file,
            warnings.catch_warnings(),
            torch.serialization.safe_globals([argparse.Namespace]),  # the options of a run; it holds, and does nothing
        ):
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of a file that is refused
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ConfigError(
                f"refused {path}: beside tensors it holds {named[1]}, which takes code to read; nothing was "
                f"run. {TRUST}"
            ) from error
        raise
