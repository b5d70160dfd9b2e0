"""A small GPT-2 with its tokenizer in a folder of Hugging Face's format, and a LoRA adapter in one of PEFT's, for tests
of programs and bindings."""
import json
import os
import random
import struct

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("Ġ", "a")]
END = "<|endoftext|>"


def byte_alphabet():
    """GPT-2's characters for bytes, in the order of its vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(code) for code in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def make_tokenizer():
    vocab = {text: i for i, text in enumerate([*byte_alphabet(), *map("".join, MERGES), END])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": vocab[END], "content": END, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": [" ".join(pair) for pair in MERGES]}}


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def write_gpt2_folder(folder, layers=2, width=32, heads=4, positions=64, dropout=0.0):
    os.makedirs(folder, exist_ok=True)
    tokenizer = make_tokenizer()
    vocab = len(tokenizer["model"]["vocab"])
    shapes = {"wte.weight": [vocab, width], "wpe.weight": [positions, width], "ln_f.weight": [width],
              "ln_f.bias": [width]}
    for layer in range(layers):
        for name, (rows, columns) in {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                                      "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}.items():
            shapes.update({f"h.{layer}.{name}.weight": [rows, columns], f"h.{layer}.{name}.bias": [columns]})
        for norm in ("ln_1", "ln_2"):
            shapes.update({f"h.{layer}.{norm}.weight": [width], f"h.{layer}.{norm}.bias": [width]})
    draw, tensors = random.Random(1), {}
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) == 2 else 1)
        middle = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        tensors[f"transformer.{name}"] = shape, [draw.gauss(middle, 0.1) for _ in range(n)]
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)
    write_json(os.path.join(folder, "tokenizer.json"), tokenizer)
    write_json(os.path.join(folder, "tokenizer_config.json"),
               {"bos_token": END, "eos_token": END, "unk_token": END, "tokenizer_class": "GPT2Tokenizer"})
    write_json(os.path.join(folder, "config.json"), {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab, "n_embd": width,
        "n_layer": layers, "n_head": heads, "n_positions": positions, "embd_pdrop": dropout, "attn_pdrop": dropout,
        "resid_pdrop": dropout, "bos_token_id": vocab - 1, "eos_token_id": vocab - 1})


def write_adapter_folder(folder, width, rank=2, layer="model.layers.0.self_attn.q_proj"):
    """Of a layer as wide as it is high."""
    os.makedirs(folder)
    draw = random.Random(2)
    write_tensors(os.path.join(folder, "adapter_model.safetensors"), {
        f"base_model.model.{layer}.lora_{name}.weight": (shape, [draw.gauss(0, 0.1) for _ in range(rank * width)])
        for name, shape in (("A", [rank, width]), ("B", [width, rank]))})
    write_json(os.path.join(folder, "adapter_config.json"),
               {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [layer]})
