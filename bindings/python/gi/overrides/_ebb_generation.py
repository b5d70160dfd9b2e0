"""Text from models: model.generate(...)."""
from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_functions import tensor

Ebb = get_introspection_module("Ebb")

__all__ = ["Generation"]

_generate, _encode = guard(Ebb.model_generate), guard(Ebb.Tokenizer.encode_text_full)


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


def _set_stop_tokens(options, tokens):
    options.set_stop_tokens([tokens] if isinstance(tokens, int) else list(tokens))


_OPTIONS = Options(Ebb.GenerationOptions, {"stop_tokens": _set_stop_tokens}, copy=Ebb.GenerationOptions.copy)


def _make_prompt(prompt, tokenizer):
    if isinstance(prompt, str):
        if tokenizer is None:
            raise TypeError(f"generate(): prompt {show(prompt)} is a text: give the tokenizer too")
        prompt = _encode(tokenizer, prompt, True)
    if isinstance(prompt, Ebb.Tensor):
        return prompt
    return tensor(list(prompt), dtype="i64")


def _take_masked(encoding):
    """The rows of a tokenizer's result, without their padding."""
    tokens = encoding["tokens"].tolist()
    mask = encoding["mask"].tolist() if "mask" in encoding else [[True] * len(row) for row in tokens]
    return [[token for token, is_text in zip(*row) if is_text] for row in zip(tokens, mask)]


def _list_prompts(prompts, tokenizer):
    if isinstance(prompts, dict):
        if "tokens" not in prompts:
            raise TypeError(f"generate(): prompts are a dict without \"tokens\": {show(prompts)}")
        return _list_prompts(_take_masked(prompts), tokenizer)
    if isinstance(prompts, str) or (isinstance(prompts, Ebb.Tensor) and len(prompts.shape) == 1):
        prompts = [prompts]
    elif not isinstance(prompts, Ebb.Tensor) and prompts and all(isinstance(token, int) for token in prompts):
        prompts = [prompts]
    return [_make_prompt(prompt, tokenizer) for prompt in prompts]


def generate(self, prompts, on_token=None, cancellable=None, **options):
    """Continues a prompt or a list of prompts: texts, with tokenizer=, lists of tokens, tensors [n], or one [B, T]; or
    those that tokenizer(texts) made.

    Texts get the special tokens that the tokenizer adds. on_token(row, token, text) is called for each token as it
    comes, with the text that has become certain; False ends all rows. What options= and the keywords, which may be
    given together, don't say comes from the model's folder; without one the likeliest token is taken, 128 times.
    """
    made = _OPTIONS.make("generate", options)
    prompts = _list_prompts(prompts, made.get_property("tokenizer"))

    failures = []

    def take(row, token, text, *_):
        try:
            return on_token(row, token, text) is not False
        except BaseException as failure:
            failures.append(failure)
            return False

    generation = _generate(self, prompts, made, None if on_token is None else take, None, cancellable)
    if failures:
        raise failures[0]
    return Generation(generation)


Ebb.Gpt.generate = _OPTIONS.show(generate)
