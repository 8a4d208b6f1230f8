"""The method's pretext task on held-out images, measured during training."""

import torch
from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.data.order import rank_share
from raysl.data.source import Split
from raysl.data.stream.loader import Loader
from raysl.nn.evaluating import evaluating
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run

PREFIX = "heldout_"


class HeldOut(Callback):
    """Logs the means of `Method.evaluation_step` over all held-out images, as `heldout_NAME`.

    Images are augmented as in training, with the same random numbers each time. Ranks share them, and every image
    counts once, or not at all where its value is NaN.
    """

    def __init__(self, loader: Loader, test: Split, every: Duration) -> None:
        self.loader = loader
        self.test = test
        self.every = every

    @override
    def on_step_end(self, run: Run, step: Step, out: object) -> None:
        if not self.every.is_due(step) and step.index != step.total:
            return
        with evaluating(run.state.method):
            run.log({PREFIX + name: mean for name, mean in self._means(run).items()})

    @torch.no_grad()
    def _means(self, run: Run) -> dict[str, float]:
        method, device = run.state.method, run.state.device
        share = rank_share(self.test.num_samples, dist.rank(), dist.world())
        names = method.evaluated_by(method.config)
        sums = torch.zeros(2, len(names), dtype=torch.float64, device=device)
        for batch in self.loader.seen_batches(self.test, share.start, share.stop, device):
            by_name: dict[str, Tensor] = method.evaluation_step(batch)
            values = torch.stack([by_name[name].double() for name in names])  # [M, B]
            sums += torch.stack([values.nansum(dim=1), (~values.isnan()).sum(dim=1)])
        totals, counts = dist.all_sum(sums)
        return dict(zip(names, (totals / counts).tolist(), strict=True))
