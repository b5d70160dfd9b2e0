"""Datasets, samplers, and loaders by the names of torch.utils.data. A loader works in the program's own process."""
import bisect
import itertools
import math
from typing import Any, Iterator, Sequence

import ebb
from ebb import Tensor
from ebb._advice import advise_in


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("utils.data", name)


# -- datasets ----------------------------------------------------------------------------------------------------------

class Dataset:
    """Items by numbers: a class of your own has __getitem__() and __len__()."""

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__(): write one")

    def __add__(self, other: Any) -> "ConcatDataset":
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Items in a row: a class of your own has __iter__()."""

    def __iter__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__(): write one")


class TensorDataset(Dataset):
    """The slices of tensors along their first dimension, as tuples."""

    def __init__(self, *tensors: Tensor) -> None:
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise ValueError(f"TensorDataset(): {', '.join(str(t.shape[0]) for t in tensors)} items: write tensors of "
                             "one length")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> Any:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class Subset(Dataset):
    """Some items of a dataset."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Datasets one after the other."""

    def __init__(self, datasets: Any) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        index %= len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1] if self.datasets else 0


class StackDataset(Dataset):
    """The items of several datasets with the same number, as tuples or dicts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.datasets: Any = kwargs or args

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        return len(next(iter(self.datasets.values())) if isinstance(self.datasets, dict) else self.datasets[0])


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    def __init__(self, datasets: Any) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Any:
        return itertools.chain(*self.datasets)


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> "list[Subset]":
    """Random parts of the data: each length is a number of items, or a share below 1."""
    n = len(dataset)
    if math.isclose(sum(lengths), 1) and n != 1 or any(isinstance(length, float) for length in lengths):
        counts = [math.floor(n * share) for share in lengths]
        for i in range(n - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = [int(length) for length in lengths]
    if sum(counts) != n:
        raise ValueError(f"random_split(): {sum(counts)} of {n} items: write lengths that sum to {n}, or to 1")
    order, ends = ebb.randperm(n, generator=generator).tolist(), list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count:end]) for count, end in zip(counts, ends)]


# -- samplers ----------------------------------------------------------------------------------------------------------

class Sampler:
    """The order of a dataset's items: a class of your own has __iter__()."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__(): write one")


class SequentialSampler(Sampler):
    """All items in order."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All items in a random order, or num_samples of them; with replacement, some may come twice."""

    def __init__(self, data_source: Any, replacement: bool = False, num_samples: Any = None,
                 generator: Any = None) -> None:
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        if self.replacement:
            yield from ebb.randint(0, n, (self.num_samples,), generator=self.generator).tolist()
            return
        for first in range(0, self.num_samples, max(n, 1)):
            yield from ebb.randperm(n, generator=self.generator).tolist()[:self.num_samples - first]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some items in a random order."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        return (self.indices[i] for i in ebb.randperm(len(self.indices), generator=self.generator).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """num_samples items, drawn by their weights."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        self.weights = weights if isinstance(weights, Tensor) else ebb.tensor([float(weight) for weight in weights])
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        return iter(ebb.multinomial(self.weights, self.num_samples, self.replacement,
                                    generator=self.generator).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of batch_size indices of another sampler."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}: write an int of at least 1")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator["list[int]"]:
        indices = iter(self.sampler)
        while True:
            batch = list(itertools.islice(indices, self.batch_size))
            if not batch or self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size if self.drop_last else -(-len(self.sampler) // self.batch_size)


class DistributedSampler(Sampler):
    """Every num_replicas-th item for this rank, of an order that all ranks draw alike; set_epoch() changes it."""

    def __init__(self, dataset: Any, num_replicas: Any = None, rank: Any = None, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        group: Any = ebb.ProcessGroup.get_default() if num_replicas is None or rank is None else None
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        self.num_replicas = group.size if num_replicas is None else num_replicas
        self.rank = group.rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"DistributedSampler(): rank is {self.rank}: write one from 0 to {self.num_replicas - 1}")
        whole, rest = divmod(len(dataset), self.num_replicas)
        self.num_samples = whole if drop_last or not rest else whole + 1
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = list(range(len(self.dataset)))
        if self.shuffle:
            order = ebb.randperm(len(order), generator=ebb.Generator(self.seed + self.epoch)).tolist()
        while len(order) < self.total_size:
            order += order[:self.total_size - len(order)]
        return iter(order[self.rank:self.total_size:self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Another order for each epoch."""
        self.epoch = epoch


# -- loaders -----------------------------------------------------------------------------------------------------------

def default_collate(batch: Any) -> Any:
    """Items as one batch: tensors are stacked, integers and arrays become tensors, and tuples, lists, and dicts are
    collated by their places."""
    first = batch[0]
    if isinstance(first, Tensor):
        return ebb.stack(list(batch))
    if isinstance(first, float):
        raise TypeError("default_collate(): PyTorch makes 64-bit floats of Python's, which are not there: write "
                        "collate_fn=, or items with ebb.tensor(value)")
    if isinstance(first, (bool, int)):
        return ebb.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if hasattr(first, "__array_interface__"):
        return ebb.stack([ebb.as_tensor(item) for item in batch])
    if isinstance(first, dict):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(default_collate, zip(*batch)))
    if isinstance(first, (tuple, list)):
        if any(len(item) != len(first) for item in batch):
            raise RuntimeError("default_collate(): items of different lengths: write collate_fn=")
        return [default_collate(part) for part in zip(*batch)]
    raise TypeError(f"default_collate(): items are of type {type(first).__name__}: write collate_fn=")


def default_convert(data: Any) -> Any:
    """An item with its arrays as tensors."""
    return ebb.as_tensor(data) if hasattr(data, "__array_interface__") else data


def get_worker_info() -> None:
    """None: loaders work in the program's own process."""


class DataLoader:
    """Batches of a dataset. Workers, prefetching, and pinned memory are taken and change nothing: items are loaded in
    the program's own process when a batch is asked for."""

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __init__(self, dataset: Any, batch_size: Any = 1, shuffle: Any = None, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0, collate_fn: Any = None, pin_memory: bool = False,
                 drop_last: bool = False, timeout: float = 0, worker_init_fn: Any = None,
                 multiprocessing_context: Any = None, generator: Any = None, *, prefetch_factor: Any = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True) -> None:
        self.dataset, self.num_workers, self.drop_last = dataset, num_workers, drop_last
        is_iterable = isinstance(dataset, IterableDataset)
        if is_iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader(): an IterableDataset has its own order: leave shuffle and samplers out, or "
                             "write a Dataset")
        if sampler is not None and shuffle:
            raise ValueError("DataLoader(): sampler and shuffle: write one of both")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("DataLoader(): batch_sampler and batch_size, shuffle, sampler, or drop_last: write "
                             "batch_sampler alone")
        if sampler is None and not is_iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.sampler, self.batch_size = sampler, None if batch_sampler is not None else batch_size
        if batch_sampler is None and batch_size is not None and not is_iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_sampler = batch_sampler
        batched = batch_sampler is not None or batch_size is not None
        self.collate_fn = collate_fn if collate_fn is not None else default_collate if batched else default_convert

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            return self._iterate()
        if self.batch_sampler is None:
            return (self.collate_fn(self.dataset[i]) for i in self.sampler)
        return (self.collate_fn([self.dataset[i] for i in batch]) for batch in self.batch_sampler)

    def _iterate(self) -> Iterator[Any]:
        items = iter(self.dataset)
        if self.batch_size is None:
            yield from map(self.collate_fn, items)
            return
        while batch := list(itertools.islice(items, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)

    def __len__(self) -> int:
        if not isinstance(self.dataset, IterableDataset):
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        n = len(self.dataset)  # type: ignore[arg-type]
        return n if self.batch_size is None else n // self.batch_size if self.drop_last else -(-n // self.batch_size)
