"""Tokenizers of folders: `ebb.open_tokenizer(folder)`, and `tokenizer(texts)`, whose result a model takes."""
from gi.module import get_introspection_module
from gi.overrides._ebb_chat import encode_messages
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_functions import tensor
from gi.overrides._ebb_models import get_path, open_folder
from gi.repository import GLib

Ebb = get_introspection_module("Ebb")
__all__ = ["open_tokenizer", "Encoding"]

_open = guard(Ebb.Tokenizer.open)
_encode_full, _decode = guard(Ebb.Tokenizer.encode_full), guard(Ebb.Tokenizer.decode_text_full)
_encode_bytes, _decode_bytes = guard(Ebb.Tokenizer.encode), guard(Ebb.Tokenizer.decode)
_SPECIAL = {name.lower(): getattr(Ebb.SpecialToken, name)
            for name in ("BOS", "EOS", "PAD", "UNK", "SEP", "CLS", "MASK")}


def encode_text(tokenizer, text, special_tokens=False):
    """The tokens of a text as a list, also of one with U+0000, where a string of C would end."""
    if not isinstance(text, str):
        raise TypeError(f"encode_text(): text is {show(text)}: it must be a str")
    return _encode_full(tokenizer, GLib.Bytes.new(text.encode()), special_tokens).tolist()


def _encode_text(self, text):
    """The tokens of a text as a list, without the special tokens that frame it."""
    return encode_text(self, text)


def _encode_text_full(self, text, special_tokens):
    """The tokens of a text as a list, with or without the special tokens that frame it."""
    return encode_text(self, text, special_tokens)


def open_tokenizer(folder):
    """The tokenizer in a folder of Hugging Face's format."""
    return open_folder(_open, get_path("open_tokenizer", folder))


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


# -- texts to tokens ---------------------------------------------------------------------------------------------------

_HINTS = {
    "return_tensors": "leave it out, tokenizer(text) gives tensors and tokenizer.encode(text) a list",
    "add_special_tokens": "write special_tokens",
    "return_attention_mask": "leave it out, the result has a mask",
    "return_token_type_ids": "leave it out, models take none",
    "text_pair": "encode one text",
    "pad_to_multiple_of": "write padding=\"max_length\" with a max_length",
}


# Arguments of other tokenizers that say what is so anyhow.
_HARMLESS = {"return_tensors": ("pt", None), "return_attention_mask": (True, None),
             "return_token_type_ids": (False, None)}


def _refuse_others(function, others, known):
    for name, value in others.items():
        if function == "tokenizer" and name in _HARMLESS and value in _HARMLESS[name]:
            continue
        raise TypeError(f"{function}() has no argument {name!r}: "
                        + _HINTS.get(name, f"its arguments are {', '.join(known)}"))


def _check_length(function, max_length, truncation):
    """The number of tokens that texts are cut to; None if they are not."""
    if truncation not in (None, True, False, "longest_first", "do_not_truncate"):
        raise ValueError(f"{function}(): truncation is {show(truncation)}: it must be True or False")
    if max_length is None and truncation in (True, "longest_first"):
        raise ValueError(f"{function}(): truncation=True needs max_length, the most tokens of a row")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise (ValueError if type(max_length) is int else TypeError)(
            f"{function}(): max_length is {show(max_length)}: it must be an int of at least 1")
    return None if truncation in (False, "do_not_truncate") else max_length


def _cut(tokenizer, text, row, most, special_tokens):
    """The first tokens of a text's row, with the special tokens that frame them."""
    plain = encode_text(tokenizer, text, False) if special_tokens else row
    n_special = len(row) - len(plain)
    if n_special > most:
        raise ValueError(f"tokenizer(): max_length is {most}: it must be at least {n_special}, the special tokens "
                         "around a text")
    begin = next(i for i in range(n_special + 1) if row[i:i + len(plain)] == plain)
    return row[:begin] + plain[:most - n_special] + row[begin + len(plain):]


def _encode_row(tokenizer, text, special_tokens, most):
    row = encode_text(tokenizer, text, special_tokens)
    return row if most is None or len(row) <= most else _cut(tokenizer, text, row, most, special_tokens)


def _padding_token(self, padding):
    if not isinstance(padding, (bool, str)):
        return padding
    for token in (self.pad_token_id, self.eos_token_id):
        if token is not None:
            return token
    raise ValueError("tokenizer(): it has no token for padding and none that ends a text: pass one, as padding=0")


def _check_side(side):
    if side not in ("left", "right"):
        raise ValueError(f"tokenizer(): padding_side is {show(side)}: it must be 'left' or 'right'")
    return side


def _make_encoding(tokenizer, rows, padding, max_length, padding_side):
    if isinstance(padding, str) and padding not in ("longest", "max_length", "do_not_pad") \
            or not isinstance(padding, (str, int)):
        raise ValueError(f"tokenizer(): padding is {show(padding)}: it must be True, False, 'longest', 'max_length' or "
                         "a token")
    side = tokenizer.padding_side if padding_side is None else _check_side(padding_side)
    if padding == "max_length" and max_length is None:
        raise ValueError("tokenizer(): padding=\"max_length\" needs max_length")
    longest = max(map(len, rows))
    if padding is False or padding == "do_not_pad":
        if min(map(len, rows)) != longest:
            raise ValueError(f"tokenizer(): rows of {min(map(len, rows))} to {longest} tokens: pass padding=True")
        token = 0
    else:
        token = _padding_token(tokenizer, padding)
    if padding == "max_length":
        longest = max(longest, max_length)
    tokens, mask = [], []
    for row in rows:
        fill = longest - len(row)
        parts = ([token] * fill, list(row)), ([False] * fill, [True] * len(row))
        for whole, (filled, kept) in zip((tokens, mask), parts):
            whole.append(filled + kept if side == "left" else kept + filled)
    return Encoding(tokens=tensor(tokens, dtype=Ebb.DType.I64), mask=tensor(mask, dtype=Ebb.DType.BOOL))


def _call(self, text, padding=False, max_length=None, special_tokens=True, padding_side=None, truncation=None,
          **others):
    """Encodes a text, or a list of texts as rows: {"tokens": i64 [rows, n], "mask": bool [rows, n], text or not}.

    padding: True fills short rows with the token for padding, or that which ends a text; a number is another token;
    "max_length" fills all rows to max_length. max_length: longer texts are cut, unless truncation is False.
    special_tokens: whether to add those that frame a text. padding_side: "left" or "right", else the tokenizer's own.
    """
    _refuse_others("tokenizer", others, ("text", "padding", "max_length", "special_tokens", "padding_side",
                                         "truncation"))
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"tokenizer(): text is {show(text)}: it must be a str or a list of str")
    most = _check_length("tokenizer", max_length, truncation)
    rows = [_encode_row(self, each, special_tokens, most) for each in texts]
    return _make_encoding(self, rows, padding, max_length, padding_side)


def _encode_any(self, text, special_tokens=True, max_length=None, truncation=None, **others):
    """The tokens of a text as a list, with the special tokens that frame it; bytes become a tensor, without them."""
    _refuse_others("encode", others, ("text", "special_tokens", "max_length", "truncation"))
    if isinstance(text, (bytes, GLib.Bytes)):
        return _encode_bytes(self, GLib.Bytes.new(text) if isinstance(text, bytes) else text)
    if not isinstance(text, str):
        raise TypeError(f"encode(): text is {show(text)}: it must be a str; tokenizer(texts) takes a list of them")
    return _encode_row(self, text, special_tokens, _check_length("encode", max_length, truncation))


def _apply_chat_template(self, messages, add_generation_prompt=False, tokenize=True, return_dict=False, padding=False,
                         max_length=None, padding_side=None, truncation=None, **variables):
    """A conversation, [{"role": "user", "content": "Hello"}, …], as the model reads it: its tokens as a list, or its
    text with tokenize=False. Of a list of conversations it is a list.

    add_generation_prompt: whether it ends with the beginning of an answer, for the model to go on. return_dict: gives
    rows as tokenizer(texts) does, with its padding, max_length and truncation. Variables that templates know are
    enable_thinking (Qwen 3) and date_string (Llama 3.1).
    """
    made, is_list = encode_messages("apply_chat_template", self, messages, add_generation_prompt, tokenize, **variables)
    if not tokenize:
        return made
    most = _check_length("apply_chat_template", max_length, truncation)
    rows = [row[:most] for row in (made if is_list else [made])]
    if return_dict:
        return _make_encoding(self, rows, padding, max_length, padding_side)
    return rows if is_list else rows[0]


# -- tokens to texts ---------------------------------------------------------------------------------------------------

def _list_tokens(function, tokens):
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    listed = [listed] if type(listed) is int else listed
    if not isinstance(listed, (list, tuple)) or not all(type(token) is int for token in listed):
        raise TypeError(f"{function}(): tokens is {show(tokens)}: it must be a list of tokens or a tensor [n]; "
                        "batch_decode() takes rows of them")
    return listed


def _decode_any(self, tokens, skip_special_tokens=False):
    """The text of tokens: a list, a tensor [n] or one token."""
    return _decode(self, _list_tokens("decode", tokens), skip_special_tokens)


def _batch_decode(self, rows, skip_special_tokens=False):
    """The text of each row of tokens."""
    return [_decode(self, _list_tokens("batch_decode", row), skip_special_tokens)
            for row in (rows.tolist() if hasattr(rows, "tolist") else rows)]


def _decode_to_bytes(self, tokens):
    """The bytes of tokens, which need not be UTF-8."""
    return _decode_bytes(self, tensor(_list_tokens("decode_bytes", tokens), dtype=Ebb.DType.I64)).get_data()


# -- special tokens ----------------------------------------------------------------------------------------------------

def _get_special(self, name):
    """The number of a token with a task: the program's own for padding, else the folder's."""
    if name == "pad" and "_padding" in self.__dict__:
        return self.__dict__["_padding"]
    token = self.get_special_token(_SPECIAL[name])
    return token if token >= 0 else None


def _set_padding(self, token):
    number = self.find_token(token) if isinstance(token, str) else token
    if number is not None and (type(number) is not int or not 0 <= number < self.get_vocab_size()):
        raise ValueError(f"the token for padding is {show(token)}: it must be a token of the vocabulary")
    self.__dict__["_padding"] = number


def _add_special(cls, name):
    def get_number(self):
        return _get_special(self, name)

    def get_spelling(self):
        number = _get_special(self, name)
        return None if number is None else self.get_token(number)

    setter = _set_padding if name == "pad" else None
    setattr(cls, f"{name}_token_id", property(get_number, setter, doc=f"The number of the {name} token, or None."))
    setattr(cls, f"{name}_token", property(get_spelling, setter, doc=f"The {name} token as text, or None."))


# -- what else users of transformers look for --------------------------------------------------------------------------

_OTHER_NAMES = {
    "convert_tokens_to_ids": "write tokenizer.find_token(spelling)",
    "convert_ids_to_tokens": "write [tokenizer.get_token(token) for token in tokens]",
    "tokenize": "write [tokenizer.get_token(token) for token in tokenizer.encode_text(text)]",
    "get_vocab": "write {tokenizer.get_token(token): token for token in range(len(tokenizer))}",
    "all_special_ids": "write tokenizer.is_special(token)",
    "all_special_tokens": "write tokenizer.is_special(token)",
    "save_pretrained": "ebb.save_model(model, folder) copies the tokenizer of the model's folder",
    "model_max_length": "write model.config.context",
    "truncation_side": "texts are cut at their end",
}


def _get_padding_side(self):
    return self.__dict__.get("_padding_side", "right")


def _set_padding_side(self, side):
    self.__dict__["_padding_side"] = _check_side(side)


def _show_tokenizer(self):
    special = "".join(f", {name}_token={getattr(self, f'{name}_token')!r}" for name in _SPECIAL
                      if getattr(self, f"{name}_token") is not None)
    return f"{type(self).__name__.removeprefix('Ebb')}(vocab_size={len(self)}{special})"


def _add_hints(cls):
    get_attribute, set_attribute = cls.__getattr__, cls.__setattr__

    def get(self, name):
        if name in _OTHER_NAMES:
            raise AttributeError(f"a tokenizer has no {name}: {_OTHER_NAMES[name]}")
        return get_attribute(self, name)

    def set_(self, name, value):
        if name in _OTHER_NAMES:
            raise AttributeError(f"a tokenizer has no {name}: {_OTHER_NAMES[name]}")
        set_attribute(self, name, value)

    cls.__getattr__, cls.__setattr__ = get, set_


def adapt_tokenizer(cls):
    """Makes tokenizers callable, and gives them `eos_token`, `eos_token_id` and the like; None where there is no such
    token."""
    cls.__call__, cls.encode, cls.apply_chat_template = _call, _encode_any, _apply_chat_template
    cls.encode_text, cls.encode_text_full = _encode_text, _encode_text_full
    cls.decode, cls.batch_decode, cls.decode_bytes = _decode_any, _batch_decode, _decode_to_bytes
    cls.__len__ = cls.get_vocab_size
    cls.vocab_size, cls.chat_template = property(cls.get_vocab_size), property(cls.get_chat_template)
    cls.padding_side = property(_get_padding_side, _set_padding_side,
                                doc="\"right\" or \"left\": where rows are padded.")
    cls.__repr__ = _show_tokenizer
    _add_hints(cls)
    for name in _SPECIAL:
        _add_special(cls, name)
