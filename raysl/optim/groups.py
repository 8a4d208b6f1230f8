"""Which parameters get weight decay and layer-wise scaling."""

from typing import Any

from torch import nn

from raysl.config.schema import OptimConfig


def split_groups(module: nn.Module, optim: OptimConfig) -> list[dict[str, Any]]:
    """Groups of the parameters that train, for an optimizer.

    With `optim.exclude_norm_and_bias`, parameters of one dimension or none (biases, scales and shifts of normalisation)
    form a group of their own with `weight_decay=0` and `layer_scaling=False`. Empty groups are left out.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    excluded = [parameter for parameter in trained if optim.exclude_norm_and_bias and parameter.ndim <= 1]
    is_excluded = {id(parameter) for parameter in excluded}
    groups = [
        {
            "params": [parameter for parameter in trained if id(parameter) not in is_excluded],
            "weight_decay": optim.weight_decay,
            "layer_scaling": True,
        },
        {"params": excluded, "weight_decay": 0.0, "layer_scaling": False},
    ]
    return [group for group in groups if group["params"]]
