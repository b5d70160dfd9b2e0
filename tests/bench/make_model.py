#!/usr/bin/python3
"""Writes a model's folder with random weights: a published shape, for what depends on bytes alone.

    make_model.py NAME FOLDER [--config-only]

The weights are bf16, and one tensor at a time stands in memory. The tokenizer is a small one of the fixtures, in the
format of the model's family: its tokens are the first ones of the vocabulary. --config-only leaves out the weights,
for an estimate. The folder is there as a whole or not at all.
"""
import argparse
import json
import os
import shutil
import struct

import numpy

FIXTURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures")
STD = 0.02

MODELS = {  # config.json, and the tokenizer among the fixtures
    "llama-3.2-1b": ({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16"}, "llama3"),
    "llama-100m": ({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 32064, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16"}, "llama3"),
    "qwen3-0.6b": ({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16"}, "qwen"),
    "gpt2": ({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True, "dtype": "bfloat16"},
             "gpt2"),
}


def list_gpt2(config):
    width = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], width)
    yield "transformer.wpe.weight", (config["n_positions"], width)
    norms = [f"transformer.h.{block}.ln_{n}" for block in range(config["n_layer"]) for n in (1, 2)]
    for norm in norms + ["transformer.ln_f"]:
        yield norm + ".weight", (width,)
        yield norm + ".bias", (width,)
    for block in range(config["n_layer"]):
        for name, n_inputs, n_outputs in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                          ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            yield f"transformer.h.{block}.{name}.weight", (n_inputs, n_outputs)
            yield f"transformer.h.{block}.{name}.bias", (n_outputs,)


def list_llama(config):
    """Names and shapes of Llama's and of Qwen3's parameters."""
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    yield "model.norm.weight", (width,)
    for block in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{block}."
        yield prefix + "input_layernorm.weight", (width,)
        yield prefix + "post_attention_layernorm.weight", (width,)
        if config["model_type"] == "qwen3":
            yield prefix + "self_attn.q_norm.weight", (size,)
            yield prefix + "self_attn.k_norm.weight", (size,)
        for name, n_outputs, n_inputs in (("self_attn.q_proj", queries, width), ("self_attn.k_proj", keys, width),
                                          ("self_attn.v_proj", keys, width), ("self_attn.o_proj", width, queries),
                                          ("mlp.gate_proj", inner, width), ("mlp.up_proj", inner, width),
                                          ("mlp.down_proj", width, inner)):
            yield f"{prefix}{name}.weight", (n_outputs, n_inputs)


def make_values(name, shape, generator):
    """bf16 as the upper halves of f32: ones for norms, zeros for biases, else normal values."""
    if name.endswith("bias"):
        return numpy.zeros(shape, numpy.uint16)
    if len(shape) == 1:
        values = numpy.ones(shape, numpy.float32)
    else:
        values = generator.standard_normal(shape, numpy.float32)
        values *= STD
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def write_weights(path, tensors):
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    generator = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            make_values(name, shape, generator).tofile(file)
        file.flush()
        os.fsync(file.fileno())


def make_model(name, folder, config_only=False):
    config, tokenizer = MODELS[name]
    new = folder.rstrip("/") + ".new"
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(os.path.join(FIXTURES, "tokenizers", tokenizer), new,
                    ignore=shutil.ignore_patterns("expected.json"))
    with open(os.path.join(new, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    if not config_only:
        tensors = list((list_gpt2 if name == "gpt2" else list_llama)(config))
        write_weights(os.path.join(new, "model.safetensors"), tensors)
    os.rename(new, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("folder")
    parser.add_argument("--config-only", action="store_true", help="no weights: enough for --estimate")
    options = parser.parse_args()
    make_model(options.name, options.folder, options.config_only)


if __name__ == "__main__":
    main()
