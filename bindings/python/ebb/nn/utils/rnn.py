"""Sequences of different lengths in one tensor, by the names of torch.nn.utils.rnn."""
from typing import Any

import ebb
from ebb import Tensor
from ebb._advice import advise_in


def pad_sequence(sequences: Any, batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Tensors [length, ..] as one, [longest, n, ..] or [n, longest, ..], filled up with a value."""
    sequences = list(sequences)
    longest, rows = max(x.shape[0] for x in sequences), []
    for x in sequences:
        filler = ebb.full([longest - x.shape[0], *x.shape[1:]], padding_value, dtype=x.dtype, device=x.device)
        rows.append(ebb.cat([filler, x] if padding_side == "left" else [x, filler]) if len(filler) else x)
    return ebb.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> "list[Tensor]":
    """The tensors that pad_sequence() has joined."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[:length] for row, length in zip(rows.unbind(0), lengths.tolist())]


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("nn.utils.rnn", name)
