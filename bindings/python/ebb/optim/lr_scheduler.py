"""Schedules of learning rates by the names of torch.optim.lr_scheduler.

Each sets the rates of an optimizer's groups when it is made and at each step(), as its base rates, the rates that the
groups had at first, times a factor.
"""
import bisect
import math
from typing import Any

from ebb._advice import advise_in


def _check_optimizer(scheduler: Any, optimizer: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"{type(scheduler).__name__}(): optimizer is {optimizer!r}: write an optimizer, as "
                        "ebb.AdamW(model, 1e-3)")


class LRScheduler:
    """The base of all schedules: a class of your own has get_lr(), which returns the rates, or get_factors()."""

    def __init__(self, optimizer: Any, last_epoch: int = -1, verbose: Any = None) -> None:
        _check_optimizer(self, optimizer)
        groups = optimizer.param_groups
        first = optimizer.__dict__.setdefault("_first_rates", {})
        self.optimizer = optimizer
        self.base_lrs = [first.setdefault(i, group["lr"]) for i, group in enumerate(groups)]
        self.last_epoch = last_epoch
        self._last_lr = list(self.base_lrs)
        self.step()

    def get_factors(self) -> "list[float]":
        """The factor of each group's base rate at last_epoch."""
        return [self.get_factor(self.last_epoch)] * len(self.base_lrs)

    def get_factor(self, step: int) -> float:
        """The same for all groups at a step."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr(): write one that returns the rates")

    def get_lr(self) -> "list[float]":
        """The rates of the groups at last_epoch."""
        return [base * factor for base, factor in zip(self.base_lrs, self.get_factors())]

    def get_last_lr(self) -> "list[float]":
        """The rates that were set last."""
        return list(self._last_lr)

    def step(self, epoch: Any = None) -> None:
        """Goes on by one step, or to one, and sets the rates."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set(self.get_lr())

    def _set(self, rates: "list[float]") -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate
        self._last_lr = list(rates)

    def state_dict(self) -> "dict[str, Any]":
        """All but the optimizer and functions."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer" and not callable(value)
                and not (isinstance(value, list) and any(callable(item) for item in value))}

    def load_state_dict(self, state_dict: "dict[str, Any]") -> None:
        """Continues from what state_dict() gave."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler


class LambdaLR(LRScheduler):
    """lr_lambda(step), or one function for each group."""

    def __init__(self, optimizer: Any, lr_lambda: Any, last_epoch: int = -1, verbose: Any = None) -> None:
        _check_optimizer(self, optimizer)
        n = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * n
        if len(self.lr_lambdas) != n:
            raise ValueError(f"LambdaLR(): {len(self.lr_lambdas)} functions for {n} groups: write one for each")
        super().__init__(optimizer, last_epoch)

    def get_factors(self) -> "list[float]":
        return [function(self.last_epoch) for function in self.lr_lambdas]


class MultiplicativeLR(LambdaLR):
    """The product of lr_lambda(1) to lr_lambda(step)."""

    def get_factors(self) -> "list[float]":
        return [math.prod(function(i) for i in range(1, self.last_epoch + 1)) for function in self.lr_lambdas]


class StepLR(LRScheduler):
    """gamma to the number of whole step_size."""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        return self.gamma**(step // self.step_size)


class MultiStepLR(LRScheduler):
    """gamma to the number of milestones that are behind."""

    def __init__(self, optimizer: Any, milestones: Any, gamma: float = 0.1, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        return self.gamma**bisect.bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """gamma to the step."""

    def __init__(self, optimizer: Any, gamma: float, last_epoch: int = -1, verbose: Any = None) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        return self.gamma**step


class ConstantLR(LRScheduler):
    """A factor until total_iters."""

    def __init__(self, optimizer: Any, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        return self.factor if step < self.total_iters else 1.0


class LinearLR(LRScheduler):
    """From start_factor to end_factor in total_iters steps."""

    def __init__(self, optimizer: Any, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5,
                 last_epoch: int = -1, verbose: Any = None) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"LinearLR(): start_factor is {start_factor}: write a number above 0 and of 1 at most")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        done = min(step, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class PolynomialLR(LRScheduler):
    """(1 - step / total_iters) to a power."""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_factor(self, step: int) -> float:
        return (1 - min(step, self.total_iters) / self.total_iters)**self.power


class CosineAnnealingLR(LRScheduler):
    """From the base rate to eta_min in T_max steps, by half a cosine, and back."""

    def __init__(self, optimizer: Any, T_max: int, eta_min: float = 0.0, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> "list[float]":
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine of T_0 steps, then one of T_mult times as many, and so on."""

    def __init__(self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> "list[float]":
        at, length = self.last_epoch, self.T_0
        while at >= length:
            at, length = at - length, length * self.T_mult
        share = (1 + math.cos(math.pi * at / length)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """Up to max_lr and down to nearly 0 in one cycle."""

    def __init__(self, optimizer: Any, max_lr: Any, total_steps: Any = None, epochs: Any = None,
                 steps_per_epoch: Any = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
                 cycle_momentum: bool = True, base_momentum: Any = 0.85, max_momentum: Any = 0.95,
                 div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
                 last_epoch: int = -1, verbose: Any = None) -> None:
        _check_optimizer(self, optimizer)
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("OneCycleLR(): write total_steps, or epochs and steps_per_epoch")
        n = len(optimizer.param_groups)
        self.total_steps = total_steps if total_steps is not None else epochs * steps_per_epoch
        self.max_lrs = list(max_lr) if isinstance(max_lr, (list, tuple)) else [max_lr] * n
        self.div_factor, self.final_div_factor, self.linear = div_factor, final_div_factor, anneal_strategy == "linear"
        up = pct_start * self.total_steps - 1
        self.ends = [up, 2 * up, self.total_steps - 1] if three_phase else [up, self.total_steps - 1]
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> "list[float]":
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR(): step {self.last_epoch} of {self.total_steps}: write a larger total_steps")
        return [self._rate(most, self.last_epoch) for most in self.max_lrs]

    def _rate(self, most: float, step: int) -> float:
        least = most / self.div_factor
        rates = [least, most, least, least / self.final_div_factor] if len(self.ends) == 3 else \
            [least, most, least / self.final_div_factor]
        begin = 0.0
        for i, end in enumerate(self.ends):
            if step <= end or i == len(self.ends) - 1:
                done = (step - begin) / (end - begin)
                share = done if self.linear else (1 - math.cos(math.pi * done)) / 2
                return rates[i] + (rates[i + 1] - rates[i]) * share
            begin = end
        raise AssertionError("a cycle has phases")


class SequentialLR(LRScheduler):
    """One schedule after the other, from the milestones on; each counts its steps from 0."""

    def __init__(self, optimizer: Any, schedulers: Any, milestones: Any, last_epoch: int = -1,
                 verbose: Any = None) -> None:
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        if len(self.milestones) != len(self.schedulers) - 1:
            raise ValueError(f"SequentialLR(): {len(self.schedulers)} schedulers and {len(self.milestones)} "
                             "milestones: write one less")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> "list[float]":
        which = bisect.bisect_right(self.milestones, self.last_epoch)
        scheduler = self.schedulers[which]
        scheduler.last_epoch = self.last_epoch - (self.milestones[which - 1] if which else 0)
        return scheduler.get_lr()

    def state_dict(self) -> "dict[str, Any]":
        state = super().state_dict()
        state["schedulers"] = [scheduler.state_dict() for scheduler in self.schedulers]
        return state

    def load_state_dict(self, state_dict: "dict[str, Any]") -> None:
        state = dict(state_dict)
        for scheduler, own in zip(self.schedulers, state.pop("schedulers")):
            scheduler.load_state_dict(own)
        super().load_state_dict(state)


class ChainedScheduler:
    """Several schedules at once: the product of their factors."""

    def __init__(self, schedulers: Any, optimizer: Any = None) -> None:
        self.schedulers = list(schedulers)
        self.optimizer = self.schedulers[0].optimizer
        self._apply()

    def _apply(self) -> None:
        bases = self.schedulers[0].base_lrs
        rates = [base * math.prod(s.get_lr()[i] / s.base_lrs[i] for s in self.schedulers)
                 for i, base in enumerate(bases)]
        self.schedulers[0]._set(rates)
        self._last_lr = rates

    def step(self) -> None:
        """Goes on by one step."""
        for scheduler in self.schedulers:
            scheduler.last_epoch += 1
        self._apply()

    def get_last_lr(self) -> "list[float]":
        """The rates that were set last."""
        return list(self._last_lr)


class ReduceLROnPlateau:
    """Multiplies the rates by factor when a metric, which step() takes, has not improved for patience steps."""

    def __init__(self, optimizer: Any, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: Any = 0.0,
                 eps: float = 1e-8, verbose: Any = None) -> None:
        _check_optimizer(self, optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau(): mode is {mode!r}: write 'min' or 'max'")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.min_lr, self.eps = (
            threshold, threshold_mode, cooldown, min_lr, eps)
        self.best, self.num_bad_epochs, self.cooldown_counter, self.last_epoch = math.inf, 0, 0, 0
        if mode == "max":
            self.best = -math.inf

    def is_better(self, value: float) -> bool:
        """Whether a metric is better than the best by the threshold."""
        sign = 1 if self.mode == "min" else -1
        margin = abs(self.best) * self.threshold if self.threshold_mode == "rel" else self.threshold
        return math.isinf(self.best) and value != self.best or sign * value < sign * self.best - margin

    def step(self, metrics: Any, epoch: Any = None) -> None:
        """Looks at a metric, a number or a tensor of one."""
        value = float(metrics)
        self.last_epoch += 1
        if self.is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _reduce(self) -> None:
        for i, group in enumerate(self.optimizer.param_groups):
            least = self.min_lr[i] if isinstance(self.min_lr, (list, tuple)) else self.min_lr
            rate = max(group["lr"] * self.factor, least)
            if group["lr"] - rate > self.eps:
                group["lr"] = rate

    def get_last_lr(self) -> "list[float]":
        """The rates of the groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> "dict[str, Any]":
        """All but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: "dict[str, Any]") -> None:
        """Continues from what state_dict() gave."""
        self.__dict__.update(state_dict)


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("optim.lr_scheduler", name)
