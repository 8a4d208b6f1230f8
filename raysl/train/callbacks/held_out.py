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
    counts once.
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
        method, device, num = run.state.method, run.state.device, self.test.num_samples
        share = rank_share(num, dist.rank(), dist.world())
        names = method.evaluated_by(method.config)
        sums = torch.zeros(len(names), dtype=torch.float64, device=device)
        for batch in self.loader.seen_batches(self.test, share.start, share.stop, device):
            values: dict[str, Tensor] = method.evaluation_step(batch)
            sums += torch.stack([values[name].double().sum() for name in names])
        return dict(zip(names, (dist.all_sum(sums) / num).tolist(), strict=True))
