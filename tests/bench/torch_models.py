"""Random models in folders for the benchmarks, and transformers' side of generation and of opening a folder.

    torch_models.py --make NAME FOLDER                     write a model
    torch_models.py --generate FOLDER [--prompt 512 --tokens 128 --dtype f32 --batch 1 --rounds 5]
    torch_models.py --open FOLDER                          seconds until from_pretrained () has the weights

Each prints one JSON object. Greedy text after a prompt of random tokens, `transformers` eager with its cache.
"""
import argparse
import json
import os
import time


def status_bytes(field):
    """A field of /proc/self/status given in kB, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


import torch  # noqa: E402
import transformers  # noqa: E402

RSS_AFTER_IMPORT = status_bytes("VmRSS")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

MODELS = {
    # 12 layers, 12 heads on 4 of keys and values
    "llama-100m": (torch.float32, {
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "tie_word_embeddings": True}),
    # Llama-3.2-1B's shape: 2.47 GB
    "llama-1b": (torch.bfloat16, {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
    # A quarter of it: 4 layers of the 16, and a quarter of the vocabulary, so that each part has its share
    "llama-quarter": (torch.bfloat16, {
        "vocab_size": 32064, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 8192,
        "tie_word_embeddings": True}),
    "llama-tiny": (torch.float32, {
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "tie_word_embeddings": True}),
}


def make(name, folder):
    dtype, values = MODELS[name]
    torch.manual_seed(1)
    config = transformers.LlamaConfig(rms_norm_eps=1e-5, **values)
    model = transformers.LlamaForCausalLM._from_config(config, dtype=dtype)
    model.save_pretrained(folder + ".new")
    os.rename(folder + ".new", folder)
    return {"parameters": sum(p.numel() for p in model.parameters())}


def open_model(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def measure_open(folder):
    start = time.perf_counter()
    model = open_model(folder, "auto")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
            "growth_bytes": status_bytes("VmRSS") - RSS_AFTER_IMPORT}


def measure_generate(options):
    model = open_model(options.generate, DTYPES[options.dtype])
    torch.manual_seed(2)
    prompts = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt))
    rounds = []
    for _ in range(options.rounds + 1):
        seconds = []
        for n in (1, options.tokens):
            settings = transformers.GenerationConfig(max_new_tokens=n, min_new_tokens=n, do_sample=False,
                                                     pad_token_id=0)
            start = time.perf_counter()
            with torch.inference_mode():
                written = model.generate(prompts, generation_config=settings,
                                         attention_mask=torch.ones_like(prompts))
            seconds.append(time.perf_counter() - start)
        rounds.append({"prompt_s": seconds[0], "whole_s": seconds[1]})
    return {"rounds": rounds[1:], "tokens": written[0, options.prompt:].tolist(),
            "resident_bytes": status_bytes("VmHWM") - RSS_AFTER_IMPORT}


def main():
    parser = argparse.ArgumentParser(description="random models in folders, and what transformers does with them")
    parser.add_argument("--make", nargs=2, metavar=("NAME", "FOLDER"), help=f"write one of {', '.join(MODELS)}")
    parser.add_argument("--open", metavar="FOLDER")
    parser.add_argument("--generate", metavar="FOLDER")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.make:
        answer = make(*options.make)
    elif options.open:
        answer = measure_open(options.open)
    elif options.generate:
        answer = measure_generate(options)
    else:
        parser.error("one of --make, --open and --generate is needed")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
