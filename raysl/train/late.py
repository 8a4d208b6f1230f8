"""Numbers that a step computes on the device and this process reads later, so that no step waits for a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.errors import RunFailed
from raysl.schedule import Step


class NonFiniteLoss(RunFailed):
    """The loss became NaN or infinite on some rank; no checkpoint was saved since."""


class Late:
    """A few numbers on their way from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.detach()
        self.event: torch.cuda.Event | None = None
        if values.is_cuda:
            # only a copy to pinned memory lets the host go on
            on_host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values = on_host.copy_(self.values, non_blocking=True)
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """Return the numbers, after waiting until the device has computed them."""
        if self.event is not None:
            self.event.synchronize()
        numbers: list[float] = self.values.tolist()
        return numbers


class Agreement:
    """Flags on which all ranks agree: one counts if it is set on every rank. Those of a step share one exchange.

    >>> agreement = Agreement()
    >>> saved, gone_on = agreement.ask(torch.ones(1)), agreement.ask(torch.tensor([0.0, 1.0]))
    >>> agreement.exchange()
    >>> saved.read(), gone_on.read()
    ([1.0], [0.0, 1.0])
    """

    def __init__(self) -> None:
        self._unsent: list[Answer] = []

    def ask(self, flags: Tensor) -> "Answer":
        """Return what will have the least of each flag over ranks; all ranks ask in the same order.

        Args:
            flags: [N], 1 or 0, on the device.
        """
        answer = Answer(self, flags.detach().float())
        self._unsent.append(answer)
        return answer

    def exchange(self) -> None:
        """Exchange the flags that were asked for since the last time, on the device; the host does not wait."""
        if not self._unsent:
            return
        late, first = Late(dist.all_least(torch.cat([answer.flags for answer in self._unsent]))), 0
        for answer in self._unsent:
            answer.sent = late, first
            first += len(answer.flags)
        self._unsent = []


class Answer:
    """The least of some flags over ranks, known later; see `Agreement`."""

    def __init__(self, agreement: Agreement, flags: Tensor) -> None:
        self.agreement = agreement
        self.flags = flags
        self.sent: tuple[Late, int] | None = None

    def read(self) -> list[float]:
        """Return the least flags, after waiting for the device. What was not exchanged yet is exchanged now."""
        if self.sent is None:
            self.agreement.exchange()
        assert self.sent is not None
        late, first = self.sent
        return late.read()[first : first + len(self.flags)]


def is_late(device: torch.device) -> bool:
    """Whether a step's numbers are read only after the next step has been queued on the device."""
    return device.type == "cuda"


class FiniteCheck:
    """Ends a run whose loss is NaN or infinite, on all ranks at the same step.

    On a CPU a loss is read at once, before its step changes a weight. On a GPU it is read when the backward pass of the
    next step has been queued, so one update has spoilt the weights when the run ends. They are not saved: the loop
    calls `settle` before it logs, ends an epoch or saves.

    Args:
        tell: called on all ranks with the step of that loss, before the run ends.
        agreement: exchanges the flags of a step; on a GPU the loop has it do so after each step.
    """

    def __init__(
        self, device: torch.device, tell: Callable[[Step], None] = lambda step: None, agreement: Agreement | None = None
    ) -> None:
        self.is_late = is_late(device)
        self.tell = tell
        self.agreement = agreement or Agreement()
        self.unread: tuple[Answer, Tensor, Step] | None = None

    def add(self, loss: Tensor, step: Step) -> None:
        """Take a step's loss, and check the loss of the step before, or on a CPU this one.

        Raises:
            NonFiniteLoss: if the checked loss is not finite on some rank.
        """
        answer = self.agreement.ask(loss.detach().isfinite().view(1))
        before, self.unread = self.unread, (answer, loss.detach(), step)
        if self.is_late:
            self._raise_unless_finite(before)
        else:
            self.settle()

    def settle(self) -> None:
        """Check the loss that is still unchecked; raises as `add` does."""
        before, self.unread = self.unread, None
        self._raise_unless_finite(before)

    def _raise_unless_finite(self, unread: tuple[Answer, Tensor, Step] | None) -> None:
        if unread is None:
            return
        answer, loss, step = unread
        (is_finite,) = answer.read()
        if not is_finite:
            value = loss.float().item()
            self.tell(step)
            raise NonFiniteLoss(
                f"the loss is not finite at step {step.index} (here {value}); "
                "lower optim.lr, lengthen optim.warmup, or set train.clip_grad"
            )
