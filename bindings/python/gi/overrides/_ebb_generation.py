"""Text from models: model.generate(...)."""
from gi.module import get_introspection_module
from gi.overrides._ebb_chat import encode_messages, find_end_of_turn
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_functions import tensor
from gi.overrides._ebb_signals import HeldSignals
from gi.overrides._ebb_tokenizers import encode_text

Ebb = get_introspection_module("Ebb")

__all__ = ["Generation"]

_generate = guard(Ebb.model_generate)
_options_of_model = guard(Ebb.GenerationOptions.new_for_model)


class Generation:
    """What model.generate() made: for each prompt `tokens`, the `texts` (None without a tokenizer) and why each row
    ended in `ends`: "length", "token", "string", "context" or "stopped"."""

    def __init__(self, made):
        rows = range(made.get_n_rows())
        self.tokens = [made.get_tokens(row).tolist() for row in rows]
        self.texts = [made.get_text(row) for row in rows]
        self.ends = [made.get_end(row).value_nick for row in rows]
        self.prompt_seconds, self.token_seconds = made.get_prompt_seconds(), made.get_token_seconds()
        self.cache_bytes = made.get_cache_bytes()

    def __repr__(self):
        return f"Generation({len(self.tokens)} rows, {sum(map(len, self.tokens))} tokens)"

    def __getitem__(self, row):
        raise TypeError(f"a Generation has lists with an entry for each prompt: write made.texts[{show(row)}] or, for "
                        f"the tokens without the prompt, made.tokens[{show(row)}]")


# -- options -----------------------------------------------------------------------------------------------------------

def _make_setter(name):
    def set_tokens(options, tokens):
        listed = [tokens] if type(tokens) is int else tokens
        if not isinstance(listed, (list, tuple)) or not all(type(token) is int for token in listed):
            raise TypeError(f"generate(): {name} is {show(tokens)}: it must be a token or a list of tokens")
        getattr(options, f"set_{name}")(list(listed))

    return set_tokens


_LISTS = {name: _make_setter(name)
          for name in ("stop_tokens", "forced_eos_tokens", "suppress_tokens", "begin_suppress_tokens")}


_HINTS = {
    "max_new_tokens": "write max_tokens",
    "max_length": "write max_tokens, which counts the new tokens alone",
    "min_new_tokens": "write min_tokens",
    "forced_bos_token_id": "write forced_bos_token",
    "forced_eos_token_id": "write forced_eos_tokens",
    "do_sample": "write temperature=1 to sample, temperature=0 for the likeliest token",
    "eos_token_id": "write stop_tokens",
    "pad_token_id": "leave it out, no token sees padding",
    "streamer": "write on_token, a function of (row, token, text)",
    "stopping_criteria": "write on_token, a function of (row, token, text) that returns False to stop",
    "generation_config": "write options, an ebb.GenerationOptions",
    "num_return_sequences": "repeat the prompt, as [prompt] * 3",
    "num_beams": "there is no beam search",
    "seed": "call ebb.manual_seed(seed) before",
}
_OPTIONS = Options(Ebb.GenerationOptions, _LISTS, copy=Ebb.GenerationOptions.copy,
                   hints=_HINTS)


def _show_options(self):
    values = {name: self.get_property(spec.name) for name, spec in _OPTIONS.specs.items()}
    values.update((name, getattr(self, f"get_{name}")()) for name in _LISTS)
    return f"GenerationOptions({', '.join(f'{name}={value!r}' for name, value in values.items())})"


Ebb.GenerationOptions.__repr__ = _show_options


# -- prompts -----------------------------------------------------------------------------------------------------------

def _make_prompt(prompt, tokenizer):
    if isinstance(prompt, str):
        if tokenizer is None:
            raise TypeError(f"generate(): prompt {show(prompt)} is a text: give the tokenizer too")
        prompt = encode_text(tokenizer, prompt, True)
    if isinstance(prompt, Ebb.Tensor):
        return prompt
    if isinstance(prompt, dict):
        raise TypeError(f"generate(): prompt {show(prompt)} is a dict: a conversation is given as messages=")
    if not isinstance(prompt, (list, tuple)) or not all(type(token) is int for token in prompt):
        raise TypeError(f"generate(): prompt is {show(prompt)}: it must be a text, a list of tokens or a tensor of "
                        "tokens")
    return tensor(list(prompt), dtype="i64")


def _take_masked(tokens, mask):
    """The rows of tokens without their padding."""
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if mask is None:
        return tokens
    mask = mask.tolist() if hasattr(mask, "tolist") else mask
    return [[token for token, is_text in zip(*row) if is_text] for row in zip(tokens, mask)]


def _list_prompts(prompts, tokenizer):
    if isinstance(prompts, dict):
        if "tokens" not in prompts:
            raise TypeError(f"generate(): prompts are a dict without \"tokens\": {show(prompts)}")
        prompts = _take_masked(prompts["tokens"], prompts.get("mask"))
    elif not isinstance(prompts, Ebb.Tensor) and hasattr(prompts, "tolist"):  # an array
        prompts = prompts.tolist()
    if isinstance(prompts, str) or (isinstance(prompts, Ebb.Tensor) and len(prompts.shape) == 1):
        prompts = [prompts]
    elif not isinstance(prompts, (list, tuple, Ebb.Tensor)):
        raise TypeError(f"generate(): prompts is {show(prompts)}: it must be a text, a list of texts, tokens, or what "
                        "tokenizer(texts) returns")
    elif not isinstance(prompts, Ebb.Tensor) and prompts and all(isinstance(token, int) for token in prompts):
        prompts = [prompts]
    return [_make_prompt(prompt, tokenizer) for prompt in prompts]


def _list_conversations(messages, options, model, is_free):
    """The prompts of conversations. Where the caller leaves the stop tokens free, one that ends a turn is added."""
    tokenizer = options.get_property("tokenizer")
    if tokenizer is None:
        raise TypeError("generate(): messages need the tokenizer: give it too, as tokenizer=ebb.open_tokenizer(folder)")
    rows, is_list = encode_messages("generate", tokenizer, messages, True)
    end = find_end_of_turn(tokenizer)
    if is_free and not options.get_stop_tokens() and end is not None:
        options.set_stop_tokens([*_options_of_model(model).get_stop_tokens(), end])
    return [tensor(row, dtype="i64") for row in (rows if is_list else [rows])]


def generate(self, prompts=None, on_token=None, cancellable=None, *, messages=None, tokens=None, mask=None,
             input_ids=None, attention_mask=None, **options):
    """Continues a prompt or a list of prompts: texts, with tokenizer=, lists of tokens, tensors [n], or one [B, T]; or
    those that tokenizer(texts) made, also as generate(**tokenizer(texts)).

    Texts get the special tokens that the tokenizer adds. messages=, with tokenizer=, is a conversation to be answered,
    as tokenizer.apply_chat_template() takes it, or a list of conversations. on_token(row, token, text) is called for
    each token as it comes, with the text that has become certain; False ends all rows. What options= and the keywords,
    which may be given together, don't say comes from the model's folder; without one the likeliest token is taken, 128
    times. Ctrl-C ends it with KeyboardInterrupt after the token that is being computed.
    """
    if on_token is not None and not callable(on_token):
        raise TypeError(f"generate(): on_token is {show(on_token)}: it must be a function of (row, token, text)")
    made = _OPTIONS.make("generate", options)
    tokens, mask = (input_ids if tokens is None else tokens), (attention_mask if mask is None else mask)
    if sum(given is not None for given in (prompts, messages, tokens)) != 1:
        raise TypeError("generate(): give one of prompts, messages and tokens")
    if messages is not None:
        prompts = _list_conversations(messages, made, self, options.get("stop_tokens") is None)
    else:
        prompts = _list_prompts(prompts if tokens is None else {"tokens": tokens, "mask": mask},
                                made.get_property("tokenizer"))

    with HeldSignals() as held:
        def take(row, token, text, *_):
            goes_on = on_token is None or held.call(on_token, row, token, text) is not False
            return goes_on and held.failure is None

        generation = _generate(self, prompts, made, take, None, cancellable)
    return Generation(generation)


Ebb.Gpt.generate = _OPTIONS.show(generate)
