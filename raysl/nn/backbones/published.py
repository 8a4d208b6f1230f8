"""Published weights of the networks of torchvision and timm, in those libraries' own caches.

A file is downloaded once, into torch's cache (`TORCH_HOME`) or that of the Hugging Face Hub (`HF_HOME`). Its SHA-256 is
compared with the published one, also where the file was in the cache: the first digits stand in the file's name, or the
Hub names the whole. Files are read as tensors alone; no code that a file or the Hub names is run.
"""

import pickle
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from raysl.errors import ConfigError, StorageError
from raysl.storage.folder import Folder

HASH_IN_NAME = re.compile(r"-([a-f0-9]{8,64})\.")
"""First digits of a file's SHA-256, in the names of torch's and timm's files: `resnet18-f37072fd.pth`."""
_WHOLE_HASH = re.compile(r"[a-f0-9]{64}")
_COMMIT = re.compile(r"[a-f0-9]{40}")
_ANSWERS_WITHIN = 10.0
"""Seconds in which a server has to answer."""
_PORTS = {"http": 80, "https": 443}
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class File:
    """A downloaded file whose hash is the published one.

    Args:
        uri: the address that it was published at.
        path: path of the copy in the cache.
        revision: commit of the repository on the Hub; None for other files.
    """

    uri: str
    path: Path
    sha256: str
    revision: str | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Read the file's tensors by name."""
        try:
            if self.path.suffix == ".safetensors":
                return load_file(self.path)
            content: Any = torch.load(self.path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ConfigError(f"cannot read the weights in {self.path}: they hold more than tensors") from error
        except (OSError, RuntimeError, ValueError, EOFError, SafetensorError) as error:
            raise ConfigError(f"cannot read the weights in {self.path}: {_first_line(error)}") from error
        for key in ("state_dict", "model"):
            if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
                content = content[key]
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise ConfigError(f"{self.path} holds other things than tensors by name; report it to its library")
        return dict(content)


@dataclass(frozen=True)
class Published:
    """Published weights of a network.

    Args:
        name: their name in the library, such as `ResNet18_Weights.IMAGENET1K_V1`.
        tensors: tensors by the library's names.
        mean, std: statistics of the images that the network was trained on, in [0, 1].
    """

    name: str
    file: File
    tensors: Mapping[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def torch_file(url: str, name: str | None = None) -> File:
    """Return a file of torch's cache, downloaded if it is not there.

    Args:
        name: name of the file in the cache; default: that of the address.

    Raises:
        ConfigError: if its name has no hash, or its content has another one.
        StorageError: if it cannot be downloaded.
    """
    from torch import hub

    name = name or Path(urlparse(url).path).name
    digits = HASH_IN_NAME.search(name)
    if digits is None:
        raise ConfigError(
            f"{url} is published without a hash, so that nothing tells a wrong file from the right one; download it, "
            "convert it with `raysl convert`, and begin with method.weights="
        )
    folder = Path(hub.get_dir()) / "checkpoints"
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            hub.download_url_to_file(url, str(path), digits[1], progress=False)
        except OSError as error:
            raise _unreachable(url, str(path), error) from error
        except RuntimeError as error:  # torch's error for another hash
            raise ConfigError(f"{url}: the download is damaged or another file ({error}); try again") from error
    return File(url, path, _checked(path, digits[1], url))


def hub_file(repository: str, names: Sequence[str] = (), revision: str | None = None) -> File:
    """Return a file of a model on the Hugging Face Hub, downloaded if it is not in the Hub's cache.

    Args:
        repository: `owner/name`, or `owner/name@commit`.
        names: names of the file, the first one that exists; default: those that timm writes.
        revision: full commit of the repository; default: the newest one.

    Raises:
        ConfigError: if `revision` is no commit, the repository has no such file, or its content has another hash.
        StorageError: if it cannot be downloaded.
    """
    if revision is not None and not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"backbone.revision: {revision!r} is not a whole commit of 40 digits, as a branch can move; copy it from "
            f"https://huggingface.co/{repository}/commits/main"
        )
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(
            "backbone.pretrained of timm needs huggingface_hub, which is not installed: pip install huggingface_hub"
        ) from error
    repository, _, commit = repository.partition("@")
    names, uri, revision = names or _HUB_FILES, f"https://huggingface.co/{repository}", revision or commit or None
    # The Hub's client asks for half a minute where nothing answers.
    offline = huggingface_hub.constants.HF_HUB_OFFLINE or _problem_with(huggingface_hub.constants.ENDPOINT)
    for name in names:
        try:
            path = Path(
                huggingface_hub.hf_hub_download(repository, name, revision=revision, local_files_only=bool(offline))
            )
        except LocalEntryNotFoundError as error:
            target = (
                f"the cache of the Hub, {huggingface_hub.constants.HF_HUB_CACHE}, and set HF_HUB_OFFLINE=1; "
                "HF_ENDPOINT names a mirror"
            )
            raise _unreachable(uri, target, offline if isinstance(offline, OSError) else error) from error
        except EntryNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot download {name} from {uri}: {_first_line(error)}") from error
        return _file_of_cache(path, name, uri)
    raise ConfigError(f"{uri} has none of {', '.join(names)}; choose another backbone.pretrained or backbone.revision")


def _file_of_cache(path: Path, name: str, uri: str) -> File:
    """Check a file of the Hub's cache, where a large file is a link to one that is named by its SHA-256."""
    commit, published = path.parents[len(Path(name).parents) - 1].name, path.resolve().name
    uri = f"{uri}/resolve/{commit}/{name}"
    if not _WHOLE_HASH.fullmatch(published):
        raise ConfigError(
            f"the Hub tells no SHA-256 of {uri}, or its cache keeps no links on this file system; download it, convert "
            "it with `raysl convert`, and begin with method.weights="
        )
    return File(uri, path, _checked(path.resolve(), published, uri), commit)


def _checked(path: Path, published: str, uri: str) -> str:
    """Return the SHA-256 of a file after a comparison with the published digits."""
    digest = Folder(str(path.parent)).sha256(path.name)
    if not digest.startswith(published):
        raise ConfigError(
            f"{path} is not the file of {uri}: its SHA-256 begins with {digest[: len(published)][:16]} and the "
            f"published one with {published[:16]}; delete it, and it is downloaded again"
        )
    return digest


def _problem_with(address: str) -> OSError | None:
    """Return the problem with reaching a server; None if it answers, or a proxy stands in between."""
    parts = urlparse(address)
    if getproxies() or parts.hostname is None:
        return None
    try:
        socket.create_connection(
            (parts.hostname, parts.port or _PORTS.get(parts.scheme, 443)), timeout=_ANSWERS_WITHIN
        ).close()
    except OSError as error:
        return error
    return None


def _unreachable(uri: str, path: str, error: Exception) -> StorageError:
    return StorageError(
        f"cannot download {uri} ({_first_line(error)}); try again where it can be reached, or bring the file to {path}"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
