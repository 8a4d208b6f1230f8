"""Small components that the tests of the configuration name by file."""

from dataclasses import dataclass, field
from typing import Any, Literal

from raysl.config.schema import MAY_CHANGE, BackboneConfig, BenchmarkConfig, DataConfig, MethodConfig, OptimConfig
from raysl.schedule import Duration


@dataclass(frozen=True, kw_only=True)
class Tip:
    """End of a head."""

    size: int
    """Outputs; has no default."""
    scale: float = 1.0
    """Factor of the outputs."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """Sizes of a head."""

    widths: tuple[int, ...] = (64, 32)
    """Outputs of its layers."""
    bias: bool = True
    """Add a bias."""
    tip: Tip = Tip(size=4)
    """What follows."""


class Contrast:
    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        name: str = "contrast"
        temperature: float = 0.1
        """Divisor of the
        similarities."""
        shape: Literal["square", "wide"] = "square"
        """Shape of the crops."""
        level: Literal[0, 1] = 0
        """How hard."""
        head: Head = Head(widths=(128, 128), tip=Tip(size=5))
        """Projector."""
        local: Head | None = None
        """Head of the local crops; default: none."""
        range: tuple[float, float] = (0.2, 1.0)
        """Areas of the crops."""
        ramp: Duration | None = None
        """Length of the ramp."""
        terms: dict[str, float] = field(default_factory=dict)
        """Weight of each term."""
        layers: list[str | int] = field(default_factory=list)
        """Layers that are read."""
        note: Any = None


class Teacher:
    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        shape: int = 3
        """A whole number here, a word in Contrast."""
        momentum: float = 0.99
        """Of the teacher."""
        head: Head = Head()
        """Predictor."""

        def __post_init__(self) -> None:
            if not 0 <= self.momentum <= 1:
                raise ValueError(f"momentum {self.momentum} is not in [0, 1]")


class Net:
    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        width: int
        """Channels."""


class Pictures:
    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        path: str | None = None
        """Where the pictures are."""


class Adam:
    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        betas: tuple[float, float] = (0.9, 0.999)
        """Decay of the moments."""
        chatty: bool = field(default=False, metadata=MAY_CHANGE)
        """Print more."""


class Neighbours:
    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        k: int = 20
        """Neighbours that vote."""


class Others:
    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        k: int = 7
        """Of another benchmark."""


class Bare:
    """Has no Config."""
