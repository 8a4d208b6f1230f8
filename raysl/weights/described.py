"""An exported `model.safetensors`: the settings in its metadata, by which it is read again, and its model card."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

import raysl
from raysl.components import resolve
from raysl.config.config_files import read
from raysl.config.dump import escape, plain, to_dict, write
from raysl.config.load import load_dumped
from raysl.config.schema import DataConfig, RunConfig
from raysl.config.trust import check_text
from raysl.errors import ConfigError
from raysl.redact import redact_tree
from raysl.weights.fill import Loaded
from raysl.weights.imported import NAME
from raysl.weights.weight_files import is_safetensors

KEY = "raysl"
"""Key of the settings in the metadata."""
_DATA = ("image_size", "eval_resize", "eval_interpolation", "mean", "std", "channels", "value_range")
"""Settings of `data` that describe the images that the backbone expects."""
_LENGTH = 8  # bytes of a safetensors file that hold the length of its header
_CHANNELS = {
    "rgb": "RGB",
    "bgr": "BGR (normalised as RGB)",
    "gray": "grey three times,",
    "lab_l": "L / 100 of CIE Lab three times,",
}


def describe(config: RunConfig) -> str:
    """Return the settings of a run's backbone and of its images as YAML."""
    images = plain(config.data)
    tree = {"backbone": plain(config.backbone), "data": {name: images[name] for name in _DATA}}
    return write(escape(redact_tree(tree)))


def to_bytes(tensors: Mapping[str, Tensor], config: RunConfig) -> bytes:
    """Return the content of `model.safetensors`; equal tensors and settings give equal bytes."""
    content = save(dict(tensors), metadata={"format": "pt", KEY: describe(config)})
    # safetensors writes the metadata in an order that varies
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    header = json.loads(content[_LENGTH:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text + content[end:]


def read_description(path: Path) -> str | None:
    """Return the settings in the metadata of a file of weights; None if it has none, or is no safetensors file."""
    if not is_safetensors(path):
        return None
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get(KEY)


def described_config(text: str, name: str, where: str, trust_code: bool) -> RunConfig:
    """Return the settings of a run that holds the described backbone.

    Raises:
        ConfigError: if the text is damaged, or names code that is not trusted.
    """
    check_text(text, where)
    tree = read(text, where)
    backbone, data = (tree.get(key) if isinstance(tree, dict) else None for key in ("backbone", "data"))
    if not isinstance(backbone, dict) or not isinstance(data, dict):
        raise ConfigError(f"{where} has no settings of a backbone in its metadata {KEY!r}; export it again")
    whole = {
        "name": escape(name),
        "method": {"name": NAME, "origin": escape(where), "layout": KEY},
        "backbone": backbone,
        "data": {"name": "photos", **{key: value for key, value in data.items() if key in _DATA}},
        "optim": {"name": "sgd"},
    }
    return load_dumped(write(whole), where, trust_code)


def needs_trust(config: RunConfig) -> bool:
    """Whether the backbone is code that is not raysl's."""
    return not resolve("backbone", config.backbone.name).__module__.startswith("raysl.")


def card_of(loaded: Loaded, content: bytes, trust: str = "") -> str:
    """Return the text of `README.md`: front matter that the Hub reads, and how to use the weights.

    Args:
        content: bytes of `model.safetensors`.
        trust: further arguments of `raysl.convert`, for a backbone that is code of others.
    """
    data, backbone = loaded.config.data, loaded.backbone
    num_weights = sum(parameter.numel() for parameter in backbone.parameters())
    settings = write({"backbone": to_dict(loaded.config)["backbone"]}).rstrip()
    trusted = ", trust_code=True" if trust else ""
    front = write(
        {
            "library_name": "raysl",
            "pipeline_tag": "image-feature-extraction",
            "tags": ["self-supervised-learning", "image-backbone", loaded.config.backbone.name],
        }
    )
    return f"""---
{front.rstrip()}
---

# {loaded.config.name}

A backbone from images [B, {backbone.in_channels}, H, W] to features [B, {backbone.feature_dim}], with
{num_weights / 1e6:.2f} M weights.
{loaded.summary}

| | |
|---|---|
| images | {data.image_size} x {data.image_size} pixels, {_channels(data)} in [0, 1] |
| normalised by the mean | {", ".join(map(str, data.mean))} |
| and the standard deviation | {", ".join(map(str, data.std))} |
| SHA-256 of `model.safetensors` | `{hashlib.sha256(content).hexdigest()}` |
| written by | raysl {raysl.__version__} |

```python
import raysl

raysl.convert("model.safetensors", "runs/{loaded.config.name}"{trust})
backbone = raysl.load_backbone("runs/{loaded.config.name}"{trusted})  # normalised images to features
```

The network's settings:

```yaml
{settings}
```
"""


def _channels(data: DataConfig) -> str:
    if not isinstance(data.channels, int):
        return _CHANNELS[data.channels]
    if data.value_range is None:
        return f"{data.channels} channels as they are stored,"
    low, high = data.value_range
    return f"{data.channels} channels as they are stored, values from {low:g} to {high:g} as shares"
