"""The model card for the Hugging Face Hub, written beside exported weights."""

import hashlib

import raysl
from raysl.config.dump import to_dict, write
from raysl.config.schema import DataConfig
from raysl.weights.fill import Loaded

_CHANNELS = {
    "rgb": "RGB",
    "bgr": "BGR (normalised as RGB)",
    "gray": "grey three times,",
    "lab_l": "L / 100 of CIE Lab three times,",
}


def _channels(data: DataConfig) -> str:
    if not isinstance(data.channels, int):
        return _CHANNELS[data.channels]
    if data.value_range is None:
        return f"{data.channels} channels as they are stored,"
    low, high = data.value_range
    return f"{data.channels} channels as they are stored, values from {low:g} to {high:g} as shares"


def card_of(loaded: Loaded, content: bytes, trust: str = "") -> str:
    """Return the text of `README.md`: front matter that the Hub reads, and how to use the weights.

    Args:
        content: bytes of `model.safetensors`.
        trust: further arguments of `raysl.convert`, of a backbone that is code of others.
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
