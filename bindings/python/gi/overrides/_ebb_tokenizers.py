"""Tokenizers of folders: `Ebb.open_tokenizer(folder)`, and `tokenizer(texts)`, whose result a model takes."""
import os

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_functions import tensor

Ebb = get_introspection_module("Ebb")
__all__ = ["open_tokenizer", "Encoding"]

_open = guard(Ebb.Tokenizer.open)
_encode = guard(Ebb.Tokenizer.encode_text_full)
_SPECIAL = {f"{name.lower()}_token_id": getattr(Ebb.SpecialToken, name)
            for name in ("BOS", "EOS", "PAD", "UNK", "SEP", "CLS", "MASK")}


def open_tokenizer(folder):
    """The tokenizer in a folder of Hugging Face's layout."""
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"open_tokenizer(): folder is {show(folder)}: it must be the path of a folder")
    return _open(os.fspath(folder))


class Encoding(dict):
    """Rows of tokens and their mask, which a model takes: `model(**tokenizer(texts))`. Both also have the names that
    they have in transformers, input_ids and attention_mask."""

    _OTHERS = {"input_ids": "tokens", "attention_mask": "mask"}

    def __missing__(self, name):
        if name in self._OTHERS:
            return self[self._OTHERS[name]]
        raise KeyError(name)

    def __getattr__(self, name):
        if name in self or name in self._OTHERS:
            return self[name]
        raise AttributeError(f"Encoding has no attribute {name!r}: it has tokens and mask")

    def to(self, *targets):
        """The same on another device."""
        return Encoding({name: value.to(*targets) for name, value in self.items()})


def _padding_token(self, padding):
    if not isinstance(padding, bool):
        return padding
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(self, name) is not None:
            return getattr(self, name)
    raise ValueError("tokenizer(): it has no token for padding and none that ends a text: pass one, as padding=0")


def _call(self, text, padding=False, max_length=None, special_tokens=True, padding_side="right"):
    """Encodes a text, or a list of texts as rows: {"tokens": i64 [rows, n], "mask": bool [rows, n], text or not}.

    padding: True fills short rows with the token for padding, or that which ends a text; a number is another token.
    max_length: longer texts are cut. special_tokens: whether to add those that frame a text.
    """
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"tokenizer(): text is {show(text)}: it must be a str or a list of str")
    if padding_side not in ("left", "right"):
        raise ValueError(f"tokenizer(): padding_side is {show(padding_side)}: it must be 'left' or 'right'")
    rows = [_encode(self, each, special_tokens)[:max_length] for each in texts]
    longest = max(map(len, rows))
    if padding is False:
        if min(map(len, rows)) != longest:
            raise ValueError(f"tokenizer(): rows of {min(map(len, rows))} to {longest} tokens: pass padding=True")
        token = 0
    else:
        token = _padding_token(self, padding)
    tokens, mask = [], []
    for row in rows:
        fill = longest - len(row)
        parts = ([token] * fill, list(row)), ([False] * fill, [True] * len(row))
        for whole, (filled, kept) in zip((tokens, mask), parts):
            whole.append(filled + kept if padding_side == "left" else kept + filled)
    return Encoding(tokens=tensor(tokens, dtype=Ebb.DType.I64), mask=tensor(mask, dtype=Ebb.DType.BOOL))


def adapt_tokenizer(cls):
    """Makes tokenizers callable, and gives them `eos_token_id` and the like; None where there is no such token."""
    cls.__call__ = _call
    for name, which in _SPECIAL.items():
        def get(self, which=which):
            token = self.get_special_token(which)
            return token if token >= 0 else None
        setattr(cls, name, property(get))
