"""Conversations as a model reads them: `tokenizer.apply_chat_template(messages)`."""
from gi.module import get_introspection_module
from gi.overrides._ebb_check import check_property, show
from gi.overrides._ebb_errors import guard

Ebb = get_introspection_module("Ebb")

_make_template = guard(Ebb.ChatTemplate.new_for_tokenizer)
_encode, _render = guard(Ebb.ChatTemplate.encode), guard(Ebb.ChatTemplate.render)

# Variables of templates: the property that each sets, and the types that it takes.
_VARIABLES = {"enable_thinking": ("thinking", bool, "True or False"), "date_string": ("date", str, "a str")}
_HINTS = {
    "tools": "templates write no tools",
    "documents": "templates write no documents",
    "chat_template": "the tokenizer's own is used; ebb.ChatTemplate.new_from_text(text, bos, eos) makes another",
    "return_tensors": "leave it out, return_dict=True gives tensors",
    "return_assistant_tokens_mask": "write ebb.ChatTemplate.new_for_tokenizer(tokenizer).encode(…)",
}


def _is_training(key, value):
    """Whether it says if a message is learned, which a template doesn't write."""
    return (key == "weight" and value in (0, 1)) or (key == "train" and isinstance(value, bool))


def _split(function, messages):
    """The roles and the contents of a conversation."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise TypeError(f"{function}(): messages is {show(messages)}: it must be a list of messages, as "
                        '[{"role": "user", "content": "Hello"}]')
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise TypeError(f"{function}(): messages[{i}] is {show(message)}: it must be a dict with the str \"role\" "
                            'and "content"')
        for key, value in message.items():
            if key not in ("role", "content") and (value or value == 0) and not _is_training(key, value):
                raise TypeError(f"{function}(): messages[{i}][{key!r}] is {show(value)}: templates write role and "
                                "content, and weight (0 or 1) and train (a bool) say what is learned: leave it out")
    return [message["role"] for message in messages], [message["content"] for message in messages]


def _set_variables(function, template, variables):
    for name, value in variables.items():
        if name not in _VARIABLES:
            raise TypeError(f"{function}() has no argument {name!r}: "
                            + _HINTS.get(name, f"variables of templates are {', '.join(_VARIABLES)}"))
        prop, kind, words = _VARIABLES[name]
        if not isinstance(value, kind):
            raise TypeError(f"{function}(): {name} is {show(value)}: it must be {words}")
        template.set_property(prop, check_property(f"{function}(): {name}", template.find_property(prop), value))


def encode_messages(function, tokenizer, messages, add_generation_prompt, tokenize=True, **variables):
    """What a conversation becomes, or each of a list of conversations; and whether it is a list of them."""
    template = _make_template(tokenizer)
    _set_variables(function, template, variables)

    def encode(conversation):
        roles, contents = _split(function, conversation)
        if tokenize:
            return _encode(template, tokenizer, roles, contents, add_generation_prompt)[0].tolist()
        return _render(template, roles, contents, add_generation_prompt)[0]

    is_list = isinstance(messages, (list, tuple)) and bool(messages) and isinstance(messages[0], (list, tuple))
    return ([encode(conversation) for conversation in messages] if is_list else encode(messages)), is_list


def find_end_of_turn(tokenizer):
    """The token that ends an answer; None if it is not one token."""
    token = tokenizer.find_token(_make_template(tokenizer).get_end_of_turn())
    return token if token >= 0 else None
