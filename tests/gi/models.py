"""Configurations, models and tokenizers as a PyTorch user writes them."""
import os
import pathlib
import tempfile

from support import Ebb, TestCase, main

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "models"


class Configurations(TestCase):
    def test_fields_are_keywords(self):
        config = Ebb.GptConfig(layers=4, width=64, heads=4)
        self.assertEqual((config.layers, config.width, config.heads, config.vocab), (4, 64, 4, 50257))
        config = Ebb.GptConfig("tiny", layers=3, dropout=0)
        self.assertEqual((config.layers, config.dropout, config.vocab), (3, 0, 256))
        self.assertEqual(Ebb.GptConfig(preset="tiny").width, Ebb.GptConfig.new_preset("tiny").width)
        config = Ebb.BertConfig(layers=2, width=32, heads=2, hidden=64)
        self.assertEqual((config.layers, config.hidden), (2, 64))

    def test_choices_have_names_and_parts_are_dicts(self):
        config = Ebb.GptConfig(activation="silu", norm_order="both", layer_pattern="sf", window=8,
                               rotary={"theta": 5e5, "scaling": "llama3", "factor": 8})
        self.assertEqual(config.activation, Ebb.Activation.SILU)
        self.assertEqual(config.norm_order, Ebb.NormOrder.BOTH)
        self.assertEqual(config.layer_pattern, "sf")
        self.assertEqual((config.rotary.theta, config.rotary.scaling, config.rotary.factor),
                         (5e5, Ebb.RotaryScaling.LLAMA3, 8.0))
        config.activation = "gelu_tanh"
        self.assertEqual(config.activation, Ebb.Activation.GELU_TANH)
        self.assertIn("layers=2", repr(Ebb.GptConfig(layers=2)))
        self.assertIn("activation='silu'", repr(Ebb.GptConfig(activation="silu")))

    def test_rotary_positions_are_shown_and_taken_back(self):
        config = Ebb.open_model(FIXTURES / "phi3-longrope").config
        text = repr(config)
        self.assertNotIn("object at", text)
        self.assertIn("rotary={'scaling': 'longrope', 'theta': 10000.0", text)
        self.assertIn("'short_factors': [1.1, 1.3, 1.7]", text)
        self.assertIn("local_rotary={'scaling': 'default', 'theta': 0.0", text)
        self.assertIn("RotaryConfig(scaling='longrope', theta=10000.0", repr(config.rotary))
        again = eval(text, {"GptConfig": Ebb.GptConfig})  # pylint: disable=eval-used
        self.assertEqual(repr(again), text)
        self.assertEqual(repr(eval(repr(Ebb.BertConfig()), {"BertConfig": Ebb.BertConfig})), repr(Ebb.BertConfig()))

    def test_lists_of_factors_are_fields(self):
        rotary = {"scaling": "longrope", "original_context": 16, "short_factors": [1, 1.5], "long_factors": (2, 3)}
        config = Ebb.GptConfig("tiny", layers=1, width=16, heads=4, layout="llama", positions="rotary", rotary=rotary)
        self.assertEqual((config.rotary.short_factors, config.rotary.long_factors), ([1, 1.5], [2, 3]))
        frequencies = dict(Ebb.Gpt(config).named_buffers())
        short, long = (next(values.tolist() for name, values in frequencies.items() if name.endswith(end))
                       for end in (".inv_freq", "long_inv_freq"))
        self.assertEqual([a / b for a, b in zip(short, long)], [2, 2])
        config.rotary.long_factors = [2, 5]
        self.assertEqual(config.rotary.long_factors, [2, 5])
        other = Ebb.GptConfig(rotary=config.rotary)
        self.assertEqual(repr(other.rotary), repr(config.rotary))
        other.rotary = Ebb.GptConfig().rotary
        self.assertEqual(repr(other), repr(Ebb.GptConfig()))

    def test_descriptions_name_choices(self):
        self.assertIn("activation='silu'", str(Ebb.open_model(FIXTURES / "llama3")))

    def test_a_model_has_its_configuration(self):
        model = Ebb.Gpt(Ebb.GptConfig("tiny", layers=1))
        self.assertEqual((model.config.layers, model.config.width), (1, 128))
        model = Ebb.Bert(Ebb.BertConfig(vocab=16, context=8, layers=1, width=16, heads=2, hidden=16))
        self.assertEqual(model.config.width, 16)

    def test_mistakes_are_named(self):
        for make, kind, words in (
                (lambda: Ebb.GptConfig(layer=3), TypeError,
                 "GptConfig() has no argument 'layer': did you mean 'layers'? Its arguments are"),
                (lambda: Ebb.GptConfig(layers="a"), TypeError, "GptConfig.layers is 'a': it must be an int"),
                (lambda: Ebb.GptConfig("big"), ValueError, "preset is 'big': it must be one of 'gpt2', "),
                (lambda: Ebb.GptConfig(activation="sil"), ValueError, "activation is 'sil': it must be one of 'gelu'"),
                (lambda: Ebb.GptConfig(rotary={"base": 3}), AttributeError, "GptConfig.rotary has no 'base': it has "),
                (lambda: Ebb.GptConfig(rotary={"theta": "a"}), TypeError, "rotary['theta'] is 'a': it must be a num"),
                (lambda: Ebb.GptConfig(rotary={"short_factors": [1], "long_factors": [1, 2]}), ValueError,
                 "GptConfig.rotary has 1 short_factors and 2 long_factors: both lists must have as many"),
                (lambda: Ebb.GptConfig(rotary=3), TypeError, "GptConfig.rotary is 3: it must be a dict, as {'theta'"),
                (lambda: Ebb.KeyValueCache(), TypeError, "KeyValueCache() needs capacity"),
                (lambda: Ebb.KeyValueCache("a"), TypeError, "KeyValueCache(): capacity is 'a': it must be an int"),
                (lambda: Ebb.KeyValueCache(size=3), TypeError, "has no argument 'size': its arguments are capacity"),
                (lambda: Ebb.GptConfig(rotary={"short_factors": 3}), TypeError, "['short_factors'] is 3: it must be a"),
                (lambda: Ebb.GptConfig(rotary={"short_factors": ["a"]}), TypeError, "it must be a list of numbers"),
                (lambda: Ebb.GptConfig(rotary={"short_factors": [1] * 200}), Ebb.Error, "200 factors, it must have at"),
                (lambda: Ebb.GptConfig(layers={"a": 3}), TypeError, "GptConfig.layers is {'a': 3}: it has no parts"),
                (lambda: Ebb.GptConfig().depth, AttributeError, "GptConfig has no attribute 'depth': it has vocab"),
                (lambda: Ebb.Gpt(Ebb.GptConfig("tiny", heads=3)), Ebb.Error, "heads")):
            with self.assertRaises(kind) as caught:
                make()
            self.assertIn(words, str(caught.exception))
        with tempfile.TemporaryDirectory() as folder:    # a file that is there isn't a model to be downloaded
            for name in "broken.gguf", "config.json":
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write("GGUF")
                for open_it in Ebb.open_model, Ebb.open_tokenizer:
                    with self.assertRaises(Ebb.Error) as caught:
                        open_it(path)
                    self.assertIn(name, str(caught.exception))
                    self.assertNotIn("downloads none", str(caught.exception))


class Folders(TestCase):
    def test_a_model_comes_back(self):
        model = Ebb.open_model(FIXTURES / "gpt2")
        self.assertIsInstance(model, Ebb.Gpt)
        self.assertFalse(model.training)
        self.assertEqual(model.config.layout, Ebb.GptLayout.GPT2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "saved")
            Ebb.save_model(model, path, dtype="bf16", max_file_size="10KB")
            self.assertIn("model.safetensors.index.json", os.listdir(path))
            saved = Ebb.open_model(path)
            for name, tensor in saved.state_dict().items():
                self.assertEqual(tensor.dtype, Ebb.bfloat16)
                self.assertEqual(tensor.tolist(), model.state_dict()[name].bfloat16().tolist())
            wide = Ebb.open_model(path, dtype=Ebb.float32)
            self.assertEqual(next(iter(wide.state_dict().values())).dtype, Ebb.float32)
        self.assertIsInstance(Ebb.open_model(str(FIXTURES / "bert")), Ebb.Bert)

    def test_mistakes_are_named(self):
        model = Ebb.Gpt(Ebb.GptConfig("tiny", layers=1))
        for make, kind, words in (
                (lambda: Ebb.open_model(3), TypeError, "open_model(): folder is 3: it must be the path of a folder"),
                (lambda: Ebb.open_model("/nowhere"), Ebb.Error, "there is no folder /nowhere; /nowhere must be"),
                (lambda: Ebb.open_model("gpt2"), Ebb.Error, "gpt2 must be the path of a folder, Ebb downloads none"),
                (lambda: model.save_pretrained("x"), AttributeError, "write ebb.save_model(model, folder)"),
                (lambda: Ebb.open_model("/nowhere", dtype="f31"), TypeError, "'f31' is no dtype"),
                (lambda: Ebb.open_model("/nowhere", dtype="i64"), Ebb.Error, "dtype is i64, it must be f32 or bf16"),
                (lambda: Ebb.save_model(3, "x"), TypeError, "save_model(): model is 3: it must be a module"),
                (lambda: Ebb.save_model(model, None), TypeError, "save_model(): folder is None"),
                (lambda: Ebb.save_model(model, "x", max_file_size=-1), TypeError, "max_file_size is -1"),
                (lambda: Ebb.save_model(Ebb.Linear(2, 2), "x"), Ebb.Error, "Linear is no model of a folder")):
            with self.assertRaises(kind) as caught:
                make()
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    main()
