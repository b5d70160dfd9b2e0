"""DeepSpeed's interface and OneFlow's switch, in Python."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from support import Ebb, TestCase, main
from gi.repository import GLib

DEFAULTS = {"partition_activations": False, "cpu_checkpointing": False, "contiguous_memory_optimization": False,
            "number_checkpoints": None, "synchronize_checkpoint_boundary": False, "profile": False}
SECTION = {"cpu_checkpointing": True, "number_checkpoints": 4, "profile": True}
WHOLE = {"train_batch_size": 8, "fp16": {"enabled": False}, "activation_checkpointing": SECTION}


class Configuration(TestCase):
    def tearDown(self):
        Ebb.checkpointing_configure()

    def assert_config(self, **expected):
        self.assertEqual(Ebb.checkpointing_get_config(), {**DEFAULTS, **expected})

    def test_nothing_is_the_defaults(self):
        code = ("import gi; gi.require_version('Ebb', '1.0'); from gi.repository import Ebb; "
                "print(Ebb.checkpointing_is_configured(), Ebb.checkpointing_get_options().get_store()); "
                "Ebb.checkpointing_configure(); print(Ebb.checkpointing_is_configured())")
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        self.assertEqual(printed, "False None\nTrue\n")
        Ebb.checkpointing_configure()
        self.assert_config()

    def test_a_configuration_is_a_dict_a_text_or_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "{ds}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(WHOLE, file)
            for config in (WHOLE, json.dumps(WHOLE), path, pathlib.Path(path)):
                Ebb.checkpointing_configure()
                Ebb.checkpointing_configure(None, config)
                self.assert_config(**SECTION)
            before = os.getcwd()
            try:
                os.chdir(folder)
                Ebb.checkpointing_configure(config=pathlib.Path("{ds}.json"))
            finally:
                os.chdir(before)
            self.assert_config(**SECTION)
        Ebb.checkpointing_configure(config={"other": object(), "activation_checkpointing": {}})
        self.assert_config()

    def test_arguments_come_last(self):
        Ebb.checkpointing_configure(config=WHOLE, checkpoint_in_cpu=False, synchronize=True, num_checkpoints=9)
        self.assert_config(number_checkpoints=9, profile=True, synchronize_checkpoint_boundary=True)
        Ebb.checkpointing_configure(profile=True)
        self.assert_config(profile=True)

    def test_deepspeeds_names_and_positions_are_taken(self):
        whole = {**SECTION, "number_checkpoints": 9, "cpu_checkpointing": False}
        for arguments, keywords in (((None, WHOLE, None, None, 9, False), {}),
                                    ((), {"mpu_": None, "deepspeed_config": WHOLE, "num_checkpoints": 9,
                                          "checkpoint_in_cpu": False}),
                                    ((), {"mpu": None, "config": WHOLE, "num_checkpoints": 9,
                                          "checkpoint_in_cpu": False})):
            Ebb.checkpointing.configure(*arguments, **keywords)
            self.assertEqual(Ebb.checkpointing.get_config(), {**DEFAULTS, **whole})
        with self.assertRaisesRegex(TypeError, "config and deepspeed_config, which are the same"):
            Ebb.checkpointing.configure(None, WHOLE, config=WHOLE)
        self.assertTrue(Ebb.checkpointing.is_configured())
        self.assertEqual(Ebb.checkpointing.checkpoint(lambda x: x * 2, Ebb.ones(2)).tolist(), [2, 2])

    def test_what_is_wrong_is_named_and_changes_nothing(self):
        Ebb.checkpointing_configure(profile=True)
        for call, *words in (
                ({"config": {"activation_checkpointing": {"cpu": True}}}, '"cpu"', "its keys are partition_"),
                ({"config": {"activation_checkpointing": {"profile": "yes"}}}, 'profile is "yes"', "true or false"),
                ({"config": {"activation_checkpointing": {"profile": {1, 2}}}}, "profile is", "true or false"),
                ({"config": {"profile": True}}, "stands outside"),
                ({"config": "nothing.json"}, "nothing.json", "No such file"),
                ({"num_checkpoints": "4"}, 'num_checkpoints is "4"', "whole number"),
                ({"num_checkpoints": 0}, "num_checkpoints is 0", "from 1 to"),
                ({"profile": 1}, "profile is 1", "true or false"),
                ({"contiguous_checkpointing": True}, "number_checkpoints", "null"),
                ({"partition_activations": True}, "there is no mpu", "at least 2")):
            with self.assertRaises(GLib.Error) as caught:
                Ebb.checkpointing_configure(**call)
            for word in words:
                self.assertIn(word, caught.exception.message)
            self.assert_config(profile=True)
        for call in ({"config": 3}, {"mpu": "two"}, {"cpu_checkpointing": True}):
            with self.assertRaises(TypeError):
                Ebb.checkpointing_configure(**call)

    def test_a_unit_says_how_many_ranks_there_are(self):
        class Unit:
            def __init__(self, n):
                self.n = n

            def get_model_parallel_world_size(self):
                return self.n

        Ebb.checkpointing_configure(Unit(1))
        Ebb.checkpointing_configure(Unit(2), partition_activations=False)
        for n, word in ((1, "mpu has one rank"), (2, "mpu has 2 ranks")):
            with self.assertRaisesRegex(GLib.Error, word):
                Ebb.checkpointing_configure(Unit(n), partition_activations=True)
        with self.assertRaisesRegex(GLib.Error, "world-size"):
            Ebb.checkpointing_configure(Ebb.Linear(1, 1))


def make_mlp():
    Ebb.manual_seed(3)
    return Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Dropout(0.3), Ebb.Linear(16, 8))


def grads_of(model, call):
    Ebb.manual_seed(7)
    x = Ebb.randn(4, 8)
    call(x).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


class Use(TestCase):
    def tearDown(self):
        Ebb.checkpointing_configure()

    def test_functions_and_modules_are_checkpointed_as_configured(self):
        plain = make_mlp()
        expected = grads_of(plain, plain)
        for settings in ({}, {"checkpoint_in_cpu": True}, {"synchronize": True}):
            Ebb.checkpointing_configure(**settings)
            model = make_mlp()
            calls = []

            def function(x, *, scale, model=model, calls=calls):
                calls.append(Ebb.is_recomputing())
                return {"y": [model(x) * scale]}

            grads = grads_of(model, lambda x, f=function: Ebb.checkpointing_checkpoint(f, x, scale=1.0)["y"][0])
            self.assertEqual(calls, [False, True])
            wrapped = make_mlp()
            options = Ebb.checkpointing_get_options()
            store = Ebb.HostStore.get_default() if "checkpoint_in_cpu" in settings else None
            self.assertEqual(options.get_store(), store)
            self.assertIs(options.synchronize, "synchronize" in settings)
            Ebb.checkpoint_wrapper(wrapped, options=options)
            for a, b, c in zip(expected, grads, grads_of(wrapped, wrapped)):
                self.assert_same(a, b)
                self.assert_same(a, c)
            Ebb.checkpointing_reset()

    def test_exceptions_come_back(self):
        def function(x):
            raise KeyError("which")

        with self.assertRaises(KeyError):
            Ebb.checkpointing_checkpoint(function, Ebb.ones(1))
        with self.assertRaises(TypeError):
            Ebb.checkpointing_checkpoint(3, Ebb.ones(1))

    def test_options_stand_alone(self):
        options = Ebb.checkpointing_get_options()
        with self.assertRaisesRegex(ValueError, "options and early_stop"):
            Ebb.checkpoint_wrapper(Ebb.Linear(1, 1), options=options, early_stop=False)
        with self.assertRaisesRegex(TypeError, "options is 'x': must be an ebb.CheckpointOptions"):
            Ebb.checkpoint_wrapper(Ebb.Linear(1, 1), options="x")

    def test_a_profile_is_logged_and_counted(self):
        code = ("import gi; gi.require_version('Ebb', '1.0'); from gi.repository import Ebb; "
                "Ebb.checkpointing_configure(profile=True); layer = Ebb.Linear(4, 4); "
                "Ebb.checkpointing_checkpoint(layer, Ebb.ones(2, 4)).sum().backward(); "
                "m = Ebb.Sequential(Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), profile=True)); "
                "m(Ebb.ones(2, 4)).sum().backward(); "
                "p = Ebb.checkpointing_get_profile(); print(p['forwards'], p['backwards'], "
                "0 < p['forward_seconds'], 0 < p['backward_seconds'], sorted(p)); "
                "print(Ebb.checkpoint_get_stats(m[0]).backward_seconds > 0)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "1 1 True True ['backward_seconds', 'backwards', 'forward_seconds', 'forwards']\n"
                         "True\n")
        for who in ("a checkpointed function", "0 (EbbLinear)"):
            for direction in ("forward", "backward"):
                self.assertEqual(done.stderr.count(f"checkpoint of {who}: {direction} "), 1, done.stderr)


class Switch(TestCase):
    def test_it_is_a_property_and_an_attribute(self):
        plain = make_mlp()
        expected = grads_of(plain, plain)
        for switch in (lambda m, on: setattr(m, "activation_checkpointing", on),
                       lambda m, on: setattr(m.props, "activation_checkpointing", on),
                       lambda m, on: m.set_property("activation-checkpointing", on)):
            model, notes = make_mlp(), []
            model.connect("notify::activation-checkpointing", lambda m, _: notes.append(m.activation_checkpointing))
            for on in (True, True, False, False, True):
                switch(model, on)
                self.assertEqual(model.props.activation_checkpointing, on)
                self.assertEqual(Ebb.checkpoint_is_wrapped(model), on)
            self.assertEqual(notes, [True, False, True])
            for a, b in zip(expected, grads_of(model, model)):
                self.assert_same(a, b)
            self.assertEqual(Ebb.checkpoint_get_n_recomputes(model), 1)

    def test_it_is_oneflows_config(self):
        model = make_mlp()
        model.config.activation_checkpointing = True
        self.assertTrue(model.config.activation_checkpointing and Ebb.checkpoint_is_wrapped(model))
        model.config.activation_checkpointing = False
        self.assertFalse(Ebb.checkpoint_is_wrapped(model))
        for change in (lambda: setattr(model.config, "checkpointing", True), lambda: model.config.checkpointing,
                       lambda: setattr(Ebb.GptConfig.new(), "activation_checkpointing", True)):
            with self.assertRaisesRegex(AttributeError, "checkpointing"):
                change()
        with self.assertRaisesRegex(TypeError, "activation_checkpointing is 1: must be True or False"):
            model.config.activation_checkpointing = 1

        class Own(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.config = {"width": 3}

        self.assertEqual(Own().config, {"width": 3})

    def test_gradient_checkpointing_switches_the_blocks(self):
        config = Ebb.GptConfig.new()
        config.vocab, config.context, config.width, config.heads, config.layers = 16, 8, 8, 2, 3
        self.assertEqual((config.vocab, config.layers), (16, 3))
        model = Ebb.Gpt(config)
        for _ in range(2):
            model.gradient_checkpointing_enable()
            self.assertEqual([Ebb.checkpoint_is_wrapped(m) for m in model.h], [True] * 3)
        model.gradient_checkpointing_disable()
        self.assertFalse(any(map(Ebb.checkpoint_is_wrapped, model.modules())))
        with self.assertRaisesRegex(ValueError, "Sequential has no ebb.Block.*checkpoint_wrap_each"):
            make_mlp().gradient_checkpointing_enable()

    def test_a_list_is_not_switched_on(self):
        with self.assertRaisesRegex(GLib.Error, "ModuleList: activation_checkpointing"):
            Ebb.ModuleList([Ebb.Tanh()]).activation_checkpointing = True


if __name__ == "__main__":
    main()
