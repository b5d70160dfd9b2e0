"""Averages of models by the names of torch.optim.swa_utils."""
import copy
from typing import Any, Callable, Optional

import ebb
from ebb import Tensor
from ebb._advice import advise_in


def get_ema_avg_fn(decay: float = 0.999) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """An exponential moving average, as AveragedModel's avg_fn."""
    return lambda averaged, current, n: averaged * decay + current * (1 - decay)


class AveragedModel(ebb.Module):
    """A copy of a model whose parameters are averages: the mean of all updates, or what avg_fn(averaged, current,
    n_averaged) gives."""

    def __init__(self, model: ebb.Module, device: Any = None, avg_fn: Optional[Callable[..., Tensor]] = None,
                 use_buffers: bool = False) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.avg_fn, self.use_buffers = avg_fn, use_buffers
        self.n_averaged = ebb.Buffer(ebb.tensor(0))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @ebb.no_grad()
    def update_parameters(self, model: ebb.Module) -> None:
        """Takes the parameters of a model into the average."""
        n = int(self.n_averaged)
        own, others = list(self.module.parameters()), list(model.parameters())
        buffers = list(zip(self.module.buffers(), model.buffers()))
        if self.use_buffers:
            own, others = own + [pair[0] for pair in buffers], others + [pair[1] for pair in buffers]
            buffers = []
        for averaged, current in zip(own, others):
            current = current.detach().to(averaged.device)
            if n == 0:
                averaged.copy_(current)
            elif self.avg_fn is not None:
                averaged.copy_(self.avg_fn(averaged.detach(), current, n))
            else:
                averaged.copy_(averaged + (current - averaged) / (n + 1))
        for averaged, current in buffers:
            averaged.copy_(current)
        self.n_averaged.copy_(ebb.tensor(n + 1))


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("optim.swa_utils", name)
