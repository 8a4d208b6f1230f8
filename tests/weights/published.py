"""Weights published as a library publishes them: at an address, under a name with the first digits of their hash."""

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torchvision import models

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = "test_resnet"
"""timm's smallest network with weights on the Hub."""


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give torch an empty cache of weights; its folder."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


def publish(model: str, content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish a file as the default weights of a name of torchvision; the path that its address leads to."""
    torch.save(content, tmp_path / "weights.pth")
    saved = (tmp_path / "weights.pth").read_bytes()
    file = tmp_path / "there" / f"{model}-{digest_of(saved)[:8]}.pth"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(saved)
    monkeypatch.setattr(models.get_model_weights(model)["DEFAULT"].value, "url", file.as_uri())
    return file


def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the Hub's client an empty cache, on a machine without a network; its folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def in_hub_cache(cache: Path, repository: str, content: bytes, name: str = "model.safetensors", **more: str) -> Path:
    """Lay a file into the Hub's cache as its own client does; the path of its content."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    blob = folder / "blobs" / more.get("published", digest_of(content))
    link = folder / "snapshots" / COMMIT / name
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(Path("../../blobs") / blob.name)
    (folder / "refs" / "main").write_text(COMMIT)
    return blob
