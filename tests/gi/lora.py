"""LoRA from Python: adapters of a model from a folder, their options, files and mistakes."""
import json
import os
import subprocess
import tempfile
import unittest

from support import Ebb, main

_GENERATE = os.path.join(os.environ.get("EBB_BUILD_DIR", "build/release"), "examples", "generate")
_MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")


def train(model, n_steps=2):
    tokens = Ebb.open_tokenizer(_MODEL)("Why is the sky blue?")["tokens"]
    optimizer = Ebb.AdamW(model, 1e-2)
    for _ in range(n_steps):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


class Lora(unittest.TestCase):
    def setUp(self):
        Ebb.manual_seed(1)
        self.model = Ebb.open_model(_MODEL)

    def test_branches_alone_are_trained(self):
        names = [name for name, _ in self.model.named_parameters()]
        self.assertIs(Ebb.lora(self.model, rank=4, alpha=8, targets=["q_proj", "v_proj"]), self.model)
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.assertEqual([name for name in trained if ".lora_" not in name], [])
        self.assertEqual({name.split(".")[-4] for name in trained}, {"q_proj", "v_proj"})
        self.assertLess(set(names), {name for name, _ in self.model.named_parameters()})
        self.assertLess(train(self.model, 8), train(Ebb.lora(Ebb.open_model(_MODEL), rank=4), 1))

    def test_a_base_is_quantised(self):
        for base, quantization in (("int8", Ebb.Quantization.INT8), ("nf4", Ebb.Quantization.NF4)):
            model = Ebb.open_model(_MODEL, base=base)
            self.assertEqual(Ebb.get_quantization(model), quantization)
            self.assertEqual(Ebb.get_quantization(Ebb.quantize(Ebb.open_model(_MODEL), base)), quantization)
            Ebb.lora(model, rank=4)
            first = train(model, 1)
            self.assertLess(train(model, 8), first)
            with self.assertRaisesRegex(Ebb.Error, f"^[^\n]*{base}[^\n]*$"):
                Ebb.lora_merge(model)
        with self.assertRaisesRegex(Ebb.Error, 'no quantisation "int4"; there are none, int8 and nf4'):
            Ebb.open_model(_MODEL, base="int4")
        with self.assertRaisesRegex(TypeError, "model is 3: it must be a module"):
            Ebb.quantize(3)

    def test_a_model_shows_the_shapes_of_its_factors(self):
        model = Ebb.lora(Ebb.Sequential(Ebb.Linear(3, 5, bias=False)), rank=2)
        self.assertEqual(repr(model), "Sequential(\n  (0): Linear(in_features=3, out_features=5, bias=False\n"
                         "    (lora_A): LoraFactor(\n      (default): LoraFactor(weight=(2, 3))\n    )\n"
                         "    (lora_B): LoraFactor(\n      (default): LoraFactor(weight=(5, 2))\n    )\n  )\n)")
        self.assertIn("lora_B: LoraFactor ()\n      default: LoraFactor (weight=[5, 2])", model.to_string())

    def test_an_optimizer_knows_the_names_of_a_module_and_the_numbers_of_a_list(self):
        model = Ebb.lora(Ebb.Sequential(Ebb.Linear(3, 5)), rank=2)
        named, listed = Ebb.AdamW(model, 1e-2), Ebb.AdamW(model.parameters(), 1e-2)
        for optimizer in (named, listed):
            model(Ebb.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            self.assertEqual(len(optimizer.state_dict()["state"]), 2)    # none for frozen weights
        named.add_group(["*.lora_B.*"], 1e-3, 0.0)
        self.assertEqual([len(group["params"]) for group in named.param_groups], [3, 1])
        for call, words in ((lambda: listed.add_group(["*.lora_B.*"], 1e-3, 0.0), "numbers for names: make the optim"),
                            (lambda: listed.load_state_dict(named.state_dict()), "numbers for names: make the optimiz"),
                            (lambda: named.load_state_dict(listed.state_dict()), "numbers are the names where an opt"),
                            (lambda: named.add_group(["lora"], 1e-3, 0.0), "the first of 4 is 0.weight$")):
            with self.assertRaisesRegex(Ebb.Error, words):
                call()

    def test_layers_are_excluded(self):
        Ebb.lora(self.model, targets="all-linear", exclude=["layers.0.*", "down_proj"])
        paths = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.assertTrue(paths)
        self.assertEqual([path for path in paths if "layers.0." in path or "down_proj" in path], [])

    def test_a_folder_brings_the_adapter_back(self):
        train(Ebb.lora(self.model, rank=2, adapter="mine"))
        tokens = Ebb.open_tokenizer(_MODEL)("Why?")["tokens"]
        with tempfile.TemporaryDirectory() as folder:
            Ebb.lora_save(self.model, folder)
            other = Ebb.lora_load(Ebb.open_model(_MODEL), folder)
            self.assertEqual(Ebb.lora_get_adapters(other), ["default"])
            self.assertEqual(other(tokens).tolist(), self.model(tokens).tolist())
            Ebb.lora_set_adapter(other, None)
            self.assertEqual(other(tokens).tolist(), Ebb.open_model(_MODEL)(tokens).tolist())
            Ebb.lora_set_adapter(other, "default")
            with self.assertRaisesRegex(Ebb.Error, "there is an adapter \"default\" already"):
                Ebb.lora_load(other, folder)
            Ebb.lora_load(other, folder, "second")
            self.assertEqual((Ebb.lora_get_adapters(other), Ebb.lora_get_adapter(other)),
                             (["default", "second"], "second"))
            self.assertEqual(other(tokens).tolist(), self.model(tokens).tolist())
            Ebb.lora_set_adapter(other, "default")
            Ebb.lora_merge(other)
            with self.assertRaisesRegex(Ebb.Error, "the adapter \"default\" is merged: merge again after"):
                Ebb.lora_merge(other)
            with self.assertRaisesRegex(Ebb.Error, "^[^\n]*lora[^\n]*$"):
                Ebb.save_model(self.model, os.path.join(folder, "model"))
            Ebb.lora_unwrap(other)
            Ebb.save_model(other, os.path.join(folder, "model"))

    def test_products_that_nobody_needs_are_left_out(self):
        """No gradient of a frozen weight or of the first block's input, nor the last product of a recompute."""
        width, rank, tokens = 32, 4, Ebb.randint(0, 64, 2, 16)
        config = Ebb.GptConfig.new()
        for name, value in {"vocab": 64, "context": 16, "width": width, "heads": 2, "layers": 2, "dropout": 0}.items():
            setattr(config, name, value)
        model = Ebb.Gpt(config)
        Ebb.checkpoint_wrap_each(Ebb.lora(model, rank=rank), Ebb.TransformerBlock)
        with Ebb.profile() as profiler:
            model(tokens).square().sum().backward()
        flop = {(row["phase"], row["name"]): row["flop"] for row in json.loads(profiler.get_json())["ops"]}
        shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]  # in the order of a block
        each = 2 * 2 * 16                                                                      # of one weight: 2 M
        base, a, b = ([each * size for size in sizes] for sizes in zip(*(
            (inner * outer, rank * inner, rank * outer) for inner, outer in shapes)))
        head = each * 64 * width
        self.assertEqual(flop["backward", "linear"], head + 2 * sum(base) - base[0] + 2 * 2 * sum(a) - a[0])
        self.assertEqual(flop["backward", "add_linear"], 2 * 2 * sum(b))
        self.assertEqual(flop["recompute", "linear"], 2 * (sum(base[:3]) + sum(a)))
        self.assertEqual(flop["recompute", "add_linear"], 2 * sum(b[:3]))

    def generate(self, folder, adapter):
        report = os.path.join(folder, "report.json")
        done = subprocess.run([_GENERATE, "--model", _MODEL, "--adapter", adapter, "--prompt", "It was", "--tokens",
                               "12", "--threads", "1", "--report", report], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr
        with open(report, encoding="utf-8") as file:
            return json.load(file)["rows"][0]["tokens"]

    def test_the_program_generates_with_an_adapter(self):
        tokenizer = Ebb.open_tokenizer(_MODEL)
        plain = self.model.generate("It was", tokenizer=tokenizer, max_tokens=12).tokens[0]
        train(Ebb.lora(self.model, rank=4), 12)
        adapted = self.model.generate("It was", tokenizer=tokenizer, max_tokens=12).tokens[0]
        self.assertNotEqual(adapted, plain)
        with tempfile.TemporaryDirectory() as folder:
            Ebb.lora_save(self.model, os.path.join(folder, "adapter"))
            self.assertEqual(self.generate(folder, os.path.join(folder, "adapter")), adapted)
            refused = self.generate(folder, os.path.join(folder, "none"))
            self.assertRegex(refused, r"^[^\n]*none/adapter_config.json[^\n]*\n$")

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(TypeError, r"lora\(\) has no option 'r': write rank="):
            Ebb.lora(self.model, r=8)
        with self.assertRaisesRegex(TypeError, "lora.. has no option 'target_modules': write targets="):
            Ebb.lora(self.model, target_modules=["q_proj"])
        with self.assertRaisesRegex(TypeError, "lora.. has no option 'modules_to_save': set requires_grad"):
            Ebb.lora(self.model, modules_to_save=["lm_head"])
        with self.assertRaisesRegex(TypeError, "rank is 0.5: must be an int"):
            Ebb.lora(self.model, rank=0.5)
        with self.assertRaisesRegex(Ebb.Error, "the target \"c_attn\" matches no linear layer of this Gpt; it has"):
            Ebb.lora(self.model, targets=["c_attn"])
        with self.assertRaisesRegex(Ebb.Error, "no linear layer of this Gpt is a target that is not excluded"):
            Ebb.lora(self.model, exclude=["*"])
        with self.assertRaisesRegex(TypeError, "lora.*model"):
            Ebb.lora("a model")
        self.assertFalse(Ebb.lora_is_wrapped(self.model))


if __name__ == "__main__":
    main()
