"""The batches of a trainer, by number, from what a program has: a DataLoader, any other iterable, or a function."""
import collections.abc
import itertools

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_compose import as_tensor, convert
from gi.overrides._ebb_functions import IGNORE_INDEX, tensor
from gi.overrides._ebb_tensor import Tensor

Ebb = get_introspection_module("Ebb")


# -- what a batch means ------------------------------------------------------------------------------------------------

_OWN_KEYS = ("tokens", "targets", "starts", "weight")
_THEIR_KEYS = ("input_ids", "labels", "attention_mask")


def _to_host(label, value):
    """The same value with all arrays in it as tensors on the CPU."""
    try:
        return convert(value, Ebb.Device.get_cpu())
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"{label}: {error}: it must be an array on the CPU") from error


def copy_tensors(value):
    """The same value with copies of its tensors: data that gives batches may fill one buffer again and again."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, collections.abc.Mapping):
        return {name: copy_tensors(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [copy_tensors(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _to_tensor(label, value):
    """An array, or lists of numbers, as a tensor on the CPU."""
    if isinstance(value, (list, tuple)):
        value = tensor(value, device="cpu")
    value = _to_host(label, value)
    if not isinstance(value, Tensor):
        raise TypeError(f"{label} is {show(value)}: it must be an array whose first dimension is rows")
    return value


def _are_tokens(value):
    """Whether a value looks like tokens, which the speed counts."""
    return isinstance(value, Tensor) and value.ndim > 1 and not value.is_floating_point()


class BatchReader:
    """Turns batches into dictionaries of tensors on the CPU, and back for a loss function.

    has_loss: whether a loss function reads them as they are. is_masked: whether the model is a masked language model,
    whose labels are not shifted.
    """

    def __init__(self, has_loss, is_masked=False):
        self._has_loss, self._is_masked = has_loss, is_masked
        self._label = ""   # what gives the batch, for messages
        self._kind = None  # the type of the batches that a loss function reads

    def read(self, label, batch):
        """The dictionary of a batch of the data that label names."""
        self._label = label
        if isinstance(batch, collections.abc.Mapping):
            batch = dict(batch)
            for name in batch:
                if not isinstance(name, str):
                    raise TypeError(f"{self._label} gave a batch with the key {show(name)}: it must be a str")
        if not self._has_loss:
            return self._read_tokens(batch)
        if self._kind not in (None, type(batch)):
            raise TypeError(f"{self._label} gave a {type(batch).__name__} after a {self._kind.__name__}: all batches "
                            "must have one form")
        self._kind = type(batch)
        batch = _to_host(f"{self._label}: a batch", batch)
        if isinstance(batch, dict):
            return batch
        if isinstance(batch, (list, tuple)) and len(batch) == 2:  # a batch counts by integers as targets
            return {"tokens" if _are_tokens(batch[0]) else "inputs": batch[0], "targets": batch[1]}
        return {"tokens" if _are_tokens(batch) else "batch": tuple(batch) if isinstance(batch, tuple) else batch}

    def restore(self, values):
        """The batch that a loss function reads, of a dictionary that read() gave."""
        if self._kind in (None, dict):
            return values
        if not issubclass(self._kind, (list, tuple)):
            return next(iter(values.values()))
        items = values["batch"] if "batch" in values else values.values()
        return self._kind(*items) if hasattr(self._kind, "_fields") else self._kind(items)

    def _read_tokens(self, batch):
        """Tokens and targets."""
        if isinstance(batch, (list, tuple)):
            if len(batch) != 2:
                raise TypeError(f"{self._label} gave a batch of {len(batch)} values: it must be (tokens, targets), or "
                                "loss=, a function of the model and the batch, must read it")
            batch = dict(zip(_OWN_KEYS, batch))
        elif not isinstance(batch, dict):
            batch = {"input_ids": batch}
        known = _THEIR_KEYS if "input_ids" in batch else _OWN_KEYS
        for name in batch:
            if name not in known:
                raise ValueError(f"{self._label} gave a batch with {name!r}, which means nothing to the model: leave "
                                 "it out, or write loss=, a function of the model and the batch that reads it")
        values = {name: value if name == "weight" else _to_tensor(f"{self._label}: {name} of a batch", value)
                  for name, value in batch.items()}
        return self._shift(values) if "input_ids" in values else values

    def _shift(self, values):
        """Tokens and targets of Hugging Face's names."""
        tokens, labels, mask = (values.get(name) for name in _THEIR_KEYS)
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ValueError(f"{self._label}: input_ids are {tokens.dtype} {list(tokens.shape)}: they must be integers "
                             "[rows, tokens]")
        mask = None if mask is None else mask != 0
        if self._is_masked:
            if labels is None or (mask is not None and not mask.all()):
                what = "has no labels" if labels is None else "has zeros in attention_mask"
                raise ValueError(f"{self._label}: a batch {what}: a masked language model takes (tokens, targets), or "
                                 "write loss=, a function of the model and the batch")
            return {"tokens": tokens, "targets": labels}
        if mask is not None and (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError(f"{self._label}: a batch has zeros in attention_mask before a token: pad on the right, "
                             "with the tokenizer's padding_side=\"right\"")
        if labels is None:
            labels = tokens if mask is None else tokens.masked_fill(~mask, IGNORE_INDEX)
        return {"tokens": tokens[:, :-1].contiguous(), "targets": labels[:, 1:].contiguous()}


# -- functions ---------------------------------------------------------------------------------------------------------

class FunctionBatches:
    """The batches of a function of their number."""

    n_batches = None  # of an epoch: not known

    def __init__(self, label, function):
        self.label, self._function = label, function

    def take(self, number):
        batch = self._function(number)
        if batch is None:
            raise TypeError(f"{self.label}({number}) returned None: it must be a batch, or {{}} at the end of the data")
        return batch


# -- iterables ---------------------------------------------------------------------------------------------------------

class _LateIndices:
    """A sampler's batches of indices without the first ones; later passes over it have all. A loader with
    workers makes two iterators and uses the second."""

    def __init__(self, sampler, n_skipped):
        self._sampler, self._n_skipped = sampler, n_skipped

    def __iter__(self):
        n_skipped, self._n_skipped = self._n_skipped, 0
        yield from itertools.islice(iter(self._sampler), n_skipped, None)

    def __len__(self):
        return len(self._sampler)


def _list_samplers(loader):
    """What decides the order of a DataLoader, the DataLoader included."""
    batches = getattr(loader, "batch_sampler", None)
    return [part for part in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
            if part is not None]


def _is_data_loader(data):
    return hasattr(data, "batch_sampler") and hasattr(data, "sampler") and hasattr(data, "dataset")


def _reads_in_order(loader):
    """Whether a DataLoader has an IterableDataset, which can't leave rows out."""
    return any(cls.__name__ == "IterableDataset" for cls in type(loader.dataset).__mro__)


def _name(data):
    return type(data).__name__


class LoaderBatches:
    """The batches of an iterable, epoch after epoch.

    n_epochs: how often all are given; None: without end. repeats: why the same batches must be given again ("resume",
    "mesh"), which an order that nobody can repeat is refused for. note: is called with a line of text.
    """

    def __init__(self, label, loader, n_epochs=1, repeats=None):
        self.label, self._loader, self.n_epochs, self.note = label, loader, n_epochs, print
        self._iterator, self._next = None, 0  # the number of the batch that the iterator gives next
        self.starts = []  # of epochs: (its number, the number of its first batch, the states of its generators)
        self._generators = []
        if _is_data_loader(loader):
            found = [getattr(part, "generator", None) for part in _list_samplers(loader)]
            self._generators = list({id(generator): generator for generator in found if generator is not None}.values())
        if repeats is not None:
            self._check_repeats(repeats)

    def _check_repeats(self, why):
        if isinstance(self._loader, collections.abc.Iterator):
            raise ValueError(f"{self.label} is a {_name(self._loader)}, which gives its batches once, and {why} is "
                             "set: give what can be gone through again, as a list, a DataLoader, or an object whose "
                             "__iter__() is a generator function")
        if not _is_data_loader(self._loader) or _reads_in_order(self._loader):
            return
        if self._generators and getattr(self._loader, "persistent_workers", False):
            raise ValueError(f"{self.label} has persistent workers, whose first epoch draws other random numbers than "
                             f"later ones, and {why} is set: leave persistent_workers out")
        for part in _list_samplers(self._loader)[1:]:
            if hasattr(part, "generator") and part.generator is None:
                raise ValueError(f"{self.label} shuffles by random numbers that nobody can repeat, and {why} is set: "
                                 f"give the DataLoader, and its {_name(part)}, "
                                 "generator=torch.Generator().manual_seed(0)")

    @property
    def n_batches(self):
        """The batches of an epoch; None if they are not known."""
        try:
            return len(self._loader)
        except TypeError:
            return None

    def take(self, number):
        """The batch of a number, counted from 0 over all epochs; {} at the end."""
        if self._iterator is None or number != self._next:
            self._seek(number)
        while True:
            try:
                batch = next(self._iterator)
            except StopIteration:
                epoch, first, _ = self.starts[-1]
                if first == self._next:
                    raise ValueError(f"{self.label} gave no batch in epoch {epoch + 1}: it must give at least one, and "
                                     "again when it is gone through again") from None
                if epoch + 1 == self.n_epochs:
                    return {}
                self._begin(epoch + 1)
                continue
            self._next += 1
            return batch

    def forget(self, number):
        """Drops the starts of epochs that no training needs which goes on with a batch of that number or later."""
        while len(self.starts) > 1 and self.starts[1][1] <= number:
            del self.starts[0]

    # -- places

    def rewind(self):
        """Gives the generators the states that they had before the first batch."""
        for generator, state in zip(self._generators, self.starts[0][2] if self.starts else ()):
            generator.set_state(state)

    def _begin(self, epoch):
        self.starts.append((epoch, self._next, [generator.get_state() for generator in self._generators]))
        self._iterator = self._iterate(epoch, 0)

    def _seek(self, number):
        while self.starts and self.starts[-1][1] > number:
            del self.starts[-1]
        if not self.starts:
            if number > 0:
                raise ValueError(f"resume: the state has no place in {self.label}: it was saved by a training on other "
                                 "data")
            self._next = 0
            self._begin(0)
            return
        epoch, first, states = self.starts[-1]
        for generator, state in zip(self._generators, states):
            generator.set_state(state)
        self._iterator, self._next = self._iterate(epoch, number - first), number

    def _iterate(self, epoch, n_skipped):
        """An iterator over the batches of an epoch but the first ones."""
        loader = self._loader
        for part in _list_samplers(loader) if _is_data_loader(loader) else ():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if n_skipped == 0:
            return iter(loader)
        if _is_data_loader(loader) and not _reads_in_order(loader):
            return self._iterate_late(n_skipped)
        if isinstance(loader, collections.abc.Sequence):
            return (loader[i] for i in range(n_skipped, len(loader)))
        self.note(f"{self.label}: {n_skipped} batches are read again and dropped, since a {_name(loader)} has no order "
                   "of its own")
        return itertools.islice(iter(loader), n_skipped, None)

    def _iterate_late(self, n_skipped):
        """The same of a DataLoader, which loads no rows of the batches that are left out."""
        name = "sampler" if self._loader.batch_sampler is None else "batch_sampler"
        sampler = getattr(self._loader, name)
        self._loader.__dict__[name] = _LateIndices(sampler, n_skipped)  # its __setattr__() refuses another sampler
        try:
            return iter(self._loader)
        finally:
            self._loader.__dict__[name] = sampler

    # -- in a state

    def get_values(self):
        """What a state keeps: the starts of epochs, with generators as tensors."""
        return [[epoch, first, [as_tensor(state).clone() for state in states]] for epoch, first, states in self.starts]

    def load_values(self, values):
        """Takes the place of a state that was loaded."""
        starts = []
        for epoch, first, states in values:
            if len(states) != len(self._generators):
                raise ValueError(f"resume: the state has {len(states)} generators, and {self.label} has "
                                 f"{len(self._generators)}: it must be made as in the training that was saved")
            starts.append((epoch, first, [self._to_state(*pair) for pair in zip(self._generators, states)]))
        self.starts, self._iterator = starts, None

    def _to_state(self, generator, values):
        state = generator.get_state()
        into = as_tensor(state)
        if into.shape != values.shape:
            raise ValueError(f"resume: the state of a generator of {self.label} has {values.shape[0]} bytes, and here "
                             f"{into.shape[0]}: it was saved with another release of its library")
        into.copy_(values)
        return state


def make_batches(label, data, n_epochs, repeats):
    """The batches of data that are no dataset of Ebb's."""
    if hasattr(data, "__iter__") or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        if isinstance(data, (str, bytes, Tensor, collections.abc.Mapping)):
            raise TypeError(f"{label} is {show(data)}: it must give batches, one after the other; [{label}] is a list "
                            "of one batch")
        return LoaderBatches(label, data, n_epochs, repeats)
    if callable(data):
        return FunctionBatches(label, data)
    raise TypeError(f"{label} is {show(data)}: it must be an ebb.TextDataset or another dataset, a DataLoader or "
                    "another iterable of batches, or a function of a batch's number")
