"""The collectives that this process takes part in, as torch's dispatcher sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Call:
    """One collective: its name, the bytes of its tensors, results among them, and whether one lies on the CPU."""

    name: str
    num_bytes: int
    is_on_cpu: bool


@dataclass
class Collectives(TorchDispatchMode):
    """Notes each collective, and the names of the other operations that compute, while open."""

    calls: list[Call] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    @property
    def num_bytes(self) -> int:
        return sum(call.num_bytes for call in self.calls)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if name.startswith("c10d."):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.calls.append(Call(name.split(".")[1], num_bytes, any(not tensor.is_cuda for tensor in tensors)))
        elif not name.startswith(("aten.view", "aten.split", "aten.detach")):
            self.others.append(name)
        return func(*args, **(kwargs or {}))
