"""`import ebb`: it finds its library by itself, has all names with their documentation, and its types are current."""
import ast
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys
import types
import unittest

import ebb
from gi.repository import GLib, GObject
from support import Ebb, main

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(_ROOT, "build", "release"))
_PROGRAM = "import ebb; print(ebb.Linear(2, 3)(ebb.ones(1, 2)).shape)"


def run(program, **environment):
    """Runs a program that is told only where the package is."""
    kept = {key: value for key, value in os.environ.items()
            if key not in ("GI_TYPELIB_PATH", "LD_LIBRARY_PATH", "EBB_BACKEND_PATH")}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd="/",
                          env={**kept, "EBB_BUILD_DIR": _BUILD, **environment})


def is_from_c(value):
    return type(value).__name__ in ("FunctionInfo", "VFuncInfo")


def list_undocumented(name, value):
    """Names without a docstring; what GObject makes of C's fields and virtual functions is none of Python's."""
    if is_from_c(value):
        return [] if "\n\n" in value.__doc__ or name == "error_quark" else [name]
    if not isinstance(value, type):
        return [] if not callable(value) or inspect.getdoc(value) else [name]
    missing = [] if value.__doc__ else [name]
    for member, item in vars(value).items():
        is_property = isinstance(item, property) and isinstance(item.fget, types.FunctionType)
        if not member.startswith(("_", "do_")) and (is_property or is_from_c(item) or isinstance(
                item, (types.FunctionType, staticmethod))):
            if not item.__doc__ or is_from_c(item) and "\n\n" not in item.__doc__:
                missing.append(f"{name}.{member}")
    return missing


class Importing(unittest.TestCase):
    def check(self, program, expected, **environment):
        done = run(program, **environment)
        self.assertEqual((done.returncode, done.stderr, done.stdout.strip()), (0, "", expected))

    def refuse(self, program, *words, **environment):
        """The program ends in an ImportError whose text is one line with all words."""
        done = run(program, **environment)
        line = done.stderr.strip().splitlines()[-1]
        self.assertEqual(done.returncode, 1)
        self.assertTrue(line.startswith("ImportError: "), done.stderr)
        for word in words:
            self.assertIn(word, line)

    def test_it_needs_no_environment(self):
        self.check(_PROGRAM, "(1, 3)")
        self.check("import os; before = dict(os.environ); import ebb; print(dict(os.environ) == before)", "True")

    def test_it_works_where_other_bindings_are_loaded(self):
        self.check(f"from gi.repository import GLib, Gio; {_PROGRAM}; print(GLib.MAJOR_VERSION)",
                   "(1, 3)\n2")

    def test_a_folder_of_the_environment_goes_first(self):
        self.check(_PROGRAM, "(1, 3)", GI_TYPELIB_PATH=_BUILD, EBB_BUILD_DIR="/nowhere")
        self.check(_PROGRAM, "(1, 3)", GI_TYPELIB_PATH="/nowhere")

    def test_what_is_missing_is_named(self):
        self.refuse(f"import sys; sys.modules['gi'] = None; {_PROGRAM}", "ebb needs PyGObject", "python3-gi",
                    "pip install PyGObject", sys.executable)
        self.refuse(_PROGRAM, "/nowhere/Ebb-1.0.typelib is not there", EBB_BUILD_DIR="/nowhere")

    def test_it_is_what_introspection_gives(self):
        for name in ("Tensor", "Linear", "checkpoint_wrapper", "gelu", "Error", "float32"):
            self.assertIs(getattr(ebb, name), getattr(Ebb, name))
        self.check("import ebb; from gi.repository import Ebb; print(ebb.Gpt is Ebb.Gpt)", "True")
        self.check("import gi; gi.require_version('Ebb', '1.0'); from gi.repository import Ebb; import ebb; "
                   "print(ebb.Gpt is Ebb.Gpt)", "True",
                   GI_TYPELIB_PATH=_BUILD)
        self.check("from ebb import *; print(AdamW.__name__, ones(2).tolist())", "AdamW [1.0, 1.0]")
        self.assertEqual(ebb.__version__, Ebb.get_version_string())

    def test_names_that_are_not_there_say_what_to_use(self):
        for name, advice in (("FSDP", "ebb.fully_shard"), ("save", "ebb.save_safetensors"), ("F", "ebb.nn.functional"),
                             ("DataLoader", "ebb.utils.data.DataLoader"), ("StepLR", "ebb.optim.lr_scheduler.StepLR"),
                             ("float64", "ebb.float32"), ("trunc_normal_", "ebb.nn.init.trunc_normal_"),
                             ("huber_loss", "ebb.nn.functional.huber_loss"), ("memory_allocated", "ebb.memory_stats("),
                             ("max_memory_allocated", "[\"peak\"]"), ("load", "ebb.load_safetensors(path)")):
            with self.assertRaisesRegex(AttributeError, f"^ebb has no '{name}': .*{re.escape(advice)}"):
                getattr(ebb, name)
        with self.assertRaisesRegex(AttributeError, "^ebb has no 'no_such_name'$"):
            getattr(ebb, "no_such_name")

    def test_names_that_are_misspelt_say_which_are_near(self):
        layer = ebb.Linear(2, 2)
        for owner, name, near in ((ebb, "Liner", "Linear"), (ebb, "adamw", "AdamW"), (ebb, "Layernorm", "LayerNorm"),
                                  (ebb, "checkpoint_wrap", "checkpoint_wrapper"), (layer, "wieght", "weight"),
                                  (layer, "in_feature", "in_features"), (ebb.ones(2), "rehsape", "reshape"),
                                  (ebb.AdamW(layer), "weight_deccay", "weight_decay")):
            with self.assertRaisesRegex(AttributeError, f"'{name}': did you mean '{near}'\\?$"):
                getattr(owner, name)
        self.assertIn("in_features", dir(layer))
        with self.assertRaisesRegex(AttributeError, "ebb.cuda has no 'ipc_collect': it has is_available, .*_stats"):
            getattr(ebb.cuda, "ipc_collect")

    def test_modules_that_are_not_there_say_what_to_use(self):
        for line in ("import ebb.jit", "import ebb.functional as F", "from ebb import vmap",
                     "from ebb.onnx import export"):
            with self.subTest(line), self.assertRaisesRegex(ImportError, "^ebb has no '.*': .*(write|instead)"):
                exec(line)  # pylint: disable=exec-used
        with self.assertRaisesRegex(ModuleNotFoundError, "No module named 'ebb.no_such_name'"):
            importlib.import_module("ebb.no_such_name")


class Documentation(unittest.TestCase):
    def test_everything_has_a_docstring(self):
        missing = [text for name in ebb.__all__ for text in list_undocumented(name, getattr(ebb, name))]
        self.assertEqual(missing, [])

    def test_help_says_what_is_taken_given_and_raised(self):
        text = pydoc.plain(pydoc.render_doc(ebb.checkpoint_wrapper))
        for word in ("offload_to_cpu=False", "preserve_rng_state=True",
                     "Returns: the same module", "determinism_check: ", "Raises: TypeError"):
            self.assertIn(word, text)
        text = pydoc.plain(pydoc.render_doc(ebb.layer_norm))
        for word in ("layer_norm(x, weight=None, bias=None, eps=1e-05)", "x: a tensor [.., N]", "Returns: a tensor",
                     "Raises: ebb.Error.SHAPE if"):
            self.assertIn(word, text)
        text = pydoc.plain(pydoc.render_doc(ebb.Linear))
        self.assertIn("in_features: The size of the input's last dimension.", text)

    def test_comments_of_c_are_in_the_words_of_python(self):
        for name in ("attention", "get_full_state_dict", "manual_seed"):
            for word in ("%NULL", "%TRUE", "@", "ebb_", "Ebb.", "EBB_"):
                self.assertNotIn(word, inspect.getdoc(getattr(ebb, name)) or "")

    def test_messages_name_the_package(self):
        folder = os.path.join(_ROOT, "bindings", "python", "gi", "overrides")
        for name in os.listdir(folder):
            if name.startswith("_ebb") and name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    texts = [node.value for node in ast.walk(ast.parse(file.read()))
                             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
                wrong = [text for text in texts if re.search(r"(?<!gi\.repository\.)\bEbb\.(?!py\b)", text)]
                self.assertEqual(wrong, [], name)
        with self.assertRaisesRegex(TypeError, r"^ebb\.cos\(\) takes exactly 1 argument"):
            ebb.cos()

    def test_constructors_show_their_arguments(self):
        for cls, text in ((ebb.Linear, "(in_features: 'int', out_features: 'int', bias: 'bool' = True)"),
                          (ebb.AdamW, "(params: 'Any', lr: 'float' = 0.001, betas: 'tuple[float, float]' = (0.9, "),
                          (ebb.GptConfig, "(preset: 'str | None' = None, *, vocab: 'int' = 50257"),
                          (ebb.HostStore, "(*, least_size: 'int' = 65536")):
            self.assertTrue(str(inspect.signature(cls)).startswith(text), inspect.signature(cls))

        self.assertEqual(inspect.signature(ebb.AdamW).parameters["weight_decay"].default, 0.01)

        class Own(ebb.Module):
            def __init__(self, width, depth=2):
                super().__init__()

        self.assertEqual(str(inspect.signature(Own)), "(width, depth=2)")


    def test_defaults_of_constructors_are_those_of_objects(self):
        n_checked = 0
        for name in ebb.__all__:
            cls = getattr(ebb, name)
            if not isinstance(cls, type) or not issubclass(cls, GObject.Object):
                continue
            try:
                parameters = inspect.signature(cls).parameters.values()
                made = cls(**{p.name: ebb.Linear(2, 2) if p.name == "params" else 4 for p in parameters
                              if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD})
            except (ValueError, TypeError, GLib.Error):  # abstract, or needs what isn't a number
                continue
            for parameter in parameters:
                if isinstance(parameter.default, (bool, int, float, str)):
                    value = getattr(made, parameter.name)
                    if not isinstance(value, ebb.Tensor):  # the bias that a bool asks for
                        self.assertEqual(getattr(value, "value_nick", value), parameter.default, (name, parameter.name))
                        n_checked += 1
        self.assertGreater(n_checked, 100)


class Types(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = os.path.join(_BUILD, "python", "ebb", "__init__.pyi")
        with open(path, encoding="utf-8") as file:
            cls.tree = ast.parse(file.read(), path)
        cls.shown = {node.name: node for node in cls.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}

    def test_all_names_are_there(self):
        names = set(self.shown)
        for node in self.tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                names.add((node.targets[0] if isinstance(node, ast.Assign) else node.target).id)
        self.assertEqual(set(ebb.__all__) - names, set(), "build the target ebb-python")
        self.assertEqual({name for name in names if not name.startswith("_")} - set(ebb.__all__), set())

    def test_arguments_are_those_of_the_functions(self):
        n_checked = 0
        for name, node in self.shown.items():
            value = getattr(ebb, name, None)
            if isinstance(value, types.FunctionType):
                arguments = node.args
                shown = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                wanted = [p.name for p in inspect.signature(value).parameters.values()
                          if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
                self.assertEqual(sorted(shown), sorted(wanted), name)
                n_checked += 1
        self.assertGreater(n_checked, 250)

    def test_tensors_and_modules_have_their_methods(self):
        for name in ("Tensor", "Module", "AdamW", "HostStore"):
            shown = {item.name for item in self.shown[name].body if isinstance(item, ast.FunctionDef)}
            wanted = {member for member, value in vars(getattr(ebb, name)).items()
                      if not member.startswith(("_", "do_")) and isinstance(value, types.FunctionType)}
            self.assertEqual(wanted - shown, set())


if __name__ == "__main__":
    main()
