"""Trains transformers inside a memory budget: `import ebb`.

The names are those of gi.repository.Ebb and its overrides, which this package finds: in a wheel they lie below it,
where Ebb is installed CMake has written down where, and a source tree has them in build/release or in EBB_BUILD_DIR. A
folder of GI_TYPELIB_PATH that has Ebb goes first.
"""
import ctypes
import os
import sys

_TYPELIB = "Ebb-1.0.typelib"
_HERE = os.path.dirname(os.path.realpath(__file__))


def _import_gi():
    try:
        import gi
        import gi._gi
        import gi.overrides
    except ImportError as error:
        raise ImportError(
            f"ebb needs PyGObject, which {sys.executable} can't import ({error}): install python3-gi and use Debian's "
            "/usr/bin/python3, also in a virtual environment that is made with its --system-site-packages, or else "
            "python3-dev, libgirepository1.0-dev, libcairo2-dev, gcc and pkg-config, and then "
            "`pip install PyGObject==3.50.0`"
        ) from None
    return gi


def _find_typelibs():
    """The folder of the typelib that belongs to this package; None where GI_TYPELIB_PATH names another."""
    for folder in os.environ.get("GI_TYPELIB_PATH", "").split(os.pathsep):
        if folder and os.path.exists(os.path.join(folder, _TYPELIB)):
            return None
    try:
        from ebb._place import TYPELIBS
        folder = os.path.normpath(os.path.join(_HERE, TYPELIBS))
    except ImportError:
        root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
        folder = os.environ.get("EBB_BUILD_DIR") or os.path.join(root, "build", "release")
    if not os.path.exists(os.path.join(folder, _TYPELIB)):
        raise ImportError(f"{os.path.join(folder, _TYPELIB)} is not there: build Ebb, or have GI_TYPELIB_PATH name the "
                          "folder that has it")
    return folder


def _add_typelibs(gi, folder):
    """Has introspection look for typelibs in a folder first. PyGObject stands on one of two generations of it."""
    path = os.fsencode(folder)
    try:
        ctypes.CDLL("libgirepository-1.0.so.1", mode=os.RTLD_NOLOAD).g_irepository_prepend_search_path(path)
    except OSError:
        # Its repository is no singleton: the one of PyGObject is the first field of its object.
        repository = ctypes.c_void_p.from_address(id(gi.Repository.get_default()) + object.__basicsize__)
        ctypes.CDLL("libgirepository-2.0.so.0", mode=os.RTLD_NOLOAD).gi_repository_prepend_search_path(repository, path)


def _add_overrides(gi):
    """The overrides beside this package go before those of a copy that the system has."""
    folder = os.path.join(os.path.dirname(_HERE), "gi", "overrides")
    gi.overrides.__path__ = [folder, *(path for path in gi.overrides.__path__ if path != folder)]


def _load():
    if "gi.repository.Ebb" not in sys.modules:
        gi = _import_gi()
        folder = _find_typelibs()
        if folder is not None:
            _add_typelibs(gi, folder)
        _add_overrides(gi)
        gi.require_version("Ebb", "1.0")
    from gi.repository import Ebb
    return Ebb


_Ebb = _load()
from gi.overrides._ebb_check import suggest_attribute  # noqa: E402, which _load() finds
from gi.overrides._ebb_compose import advise_on_tensor  # noqa: E402
__version__ = _Ebb.get_version_string()

# Names of PyTorch that are not here: the code to write instead. A name may stand for several.
_OWN = ("layers, optimizers and functions are ebb's own, as ebb.Linear, ebb.AdamW and ebb.gelu(): write "
        "`import ebb as {}`")
_BATCHES = ("batches come from any iterable of numpy arrays, by `for x, y in ebb.batches(loader):`, a torch DataLoader "
            "too, or from ebb.TextDataset")
_MEMORY = "write ebb.memory_stats(\"cuda\")"
_SCHEDULE = "write ebb.CosineSchedule(warmup, total), whose apply(optimizer) sets the rate, or optimizer.lr = rate"
_NO_LAYER = "there are no convolutions, poolings and recurrent layers: compose ebb.Linear and functions in forward()"
_ADVICE = {
    **{name: _OWN.format(name) for name in ("nn", "functional", "F", "optim")},
    **dict.fromkeys(("DataLoader", "TensorDataset", "IterableDataset"), _BATCHES),
    **dict.fromkeys(("lr_scheduler", "LambdaLR", "StepLR", "CosineAnnealingLR", "OneCycleLR", "LinearLR",
                     "ExponentialLR", "ReduceLROnPlateau", "get_cosine_schedule_with_warmup"), _SCHEDULE),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "LSTM", "LSTMCell",
                     "GRU", "GRUCell", "RNN"), _NO_LAYER),
    **dict.fromkeys(("BatchNorm2d", "GroupNorm", "InstanceNorm1d"),
                    "there are ebb.LayerNorm, ebb.RMSNorm and ebb.BatchNorm1d"),
    "memory_allocated": _MEMORY + "[\"total\"][\"current\"]",
    "memory_summary": _MEMORY,
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"),
                    "write ebb.memory_reset_peaks(\"cuda\")"),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _MEMORY + "[\"reserved\"]"),
    **dict.fromkeys(("load_model", "from_pretrained", "AutoModel", "AutoModelForCausalLM"),
                    "write ebb.open_model(folder)"),
    **dict.fromkeys(("AutoTokenizer", "load_tokenizer", "GPT2Tokenizer"), "write ebb.open_tokenizer(folder)"),
    **dict.fromkeys(("get_peft_model", "LoraConfig", "PeftModel"), "write ebb.lora(model, rank=8)"),
    **dict.fromkeys(("save_checkpoint", "load_checkpoint"),
                    "write ebb.TrainingState(model, optimizer), which saves and loads all of a training"),
    **dict.fromkeys(("RMSprop", "Adagrad", "LBFGS", "Adadelta"), "there are ebb.AdamW, ebb.Adam and ebb.SGD"),
    **dict.fromkeys(("float64", "double", "DoubleTensor"), "there are no 64-bit floats: write ebb.float32"),
    **dict.fromkeys(("concat", "concatenate", "hstack"), "write ebb.cat()"),
    **dict.fromkeys(("inf", "nan", "pi", "e"), "write math.inf, math.nan, math.pi, math.e"),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDP"), "write ebb.fully_shard(model)"),
    **dict.fromkeys(("DistributedDataParallel", "DataParallel", "DDP", "parallel"), "write ebb.replicate(model)"),
    **dict.fromkeys(("MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder", "Transformer"),
                    "write ebb.MultiHeadAttention(width, heads) or ebb.TransformerBlock(width, heads), batch first"),
    **dict.fromkeys(("vmap", "func", "Function", "jit", "onnx", "fx", "hub", "quantization", "sparse"),
                    "it is not there, and nothing stands for it"),
    **dict.fromkeys(("set_default_dtype", "get_default_dtype"),
                    "layers have f32: write `with ebb.parameter_dtype(\"bf16\"):` for bf16"),
    **dict.fromkeys(("finfo", "iinfo"), "write -math.inf for what is masked"),
    **dict.fromkeys(("get_rng_state", "set_rng_state"),
                    "an ebb.TrainingState saves generators; to have one of your own, write ebb.Generator()"),
    "utils": "write ebb.checkpoint() for torch.utils.checkpoint; " + _BATCHES,
    "amp": "write `with ebb.autocast():`; bf16 needs no GradScaler",
    "GradScaler": "bf16 needs none: write loss.backward() and optimizer.step()",
    "distributed": "write ebb.init_process_group(), whose groups have rank, size, all_reduce() and the others, and "
                   "ebb.fully_shard(model) for FSDP",
    "save": "write ebb.save_safetensors(model.state_dict(), path), or pickle.dump(); an ebb.TrainingState saves all of "
            "a training",
    "load": "write model.load_state_dict(ebb.load_safetensors(path)), or pickle.load()",
    "inference_mode": "write `with ebb.no_grad():`",
    "set_grad_enabled": "write `with ebb.no_grad():` or `with ebb.enable_grad():`",
    "compile": "models run as they are; ebb.plan_memory() chooses what they keep",
    "use_deterministic_algorithms": "the same program gives the same bits as it is",
    "backends": "ebb.list_device_kinds() names the devices",
    **dict.fromkeys(("huber_loss", "smooth_l1_loss", "kl_div", "cosine_similarity", "cdist", "logsigmoid", "mish",
                     "glu", "hardtanh"),
                    "compose it of ops, as x.softmax(-1), ebb.where() and sums, which gradients flow through"),
    **dict.fromkeys(("diag", "trace", "diagonal"), "write ebb.einsum(\"ii->i\", t), or \"ii->\" for its sum"),
    **dict.fromkeys(("quantile", "histc", "searchsorted", "bucketize"), "write numpy's of t.numpy()"),
    "vstack": "write ebb.cat(tensors, 0)",
    "normal": "write mean + std * ebb.randn(*shape)",
    "bernoulli": "write (ebb.rand_like(p) < p).float()",
    "clip": "write ebb.clamp()",
    "pad": "write ebb.cat() with ebb.zeros()",
    "normalize": "write x / x.norm(dim=-1, keepdim=True)",
    "leaky_relu": "write ebb.where(x > 0, x, slope * x)",
    "elu": "write ebb.where(x > 0, x, x.exp() - 1)",
    "nll_loss": "write ebb.cross_entropy(logits, targets), without log_softmax()",
    "l1_loss": "write abs(a - b).mean()",
    "remainder": "write ebb.tensor(t.numpy() % n)",
    "bincount": "write numpy.bincount(t.numpy())",
    "meshgrid": "give each tensor its dimension: a[:, None] and b[None, :] are broadcast",
    "broadcast_to": "write t.expand(*shape)",
    "baddbmm": "write c + a @ b",
    "linalg": "write t.norm(); for decompositions, numpy.linalg of t.numpy()",
    "init": "write weight.normal_(0, 0.02) or weight.uniform_(-a, a) in `with ebb.no_grad():`",
    "trunc_normal_": "write weight.normal_(0, 0.02).clamp_(-2, 2) in `with ebb.no_grad():`",
    "xavier_uniform_": "write weight.uniform_(-a, a) in `with ebb.no_grad():`, a = math.sqrt(6 / sum(weight.shape))",
    "xavier_normal_": "write weight.normal_(0, s) in `with ebb.no_grad():`, s = math.sqrt(2 / sum(weight.shape))",
    "kaiming_uniform_": "write weight.uniform_(-a, a) in `with ebb.no_grad():`, a = math.sqrt(6 / weight.shape[1])",
    "kaiming_normal_": "write weight.normal_(0, s) in `with ebb.no_grad():`, s = math.sqrt(2 / weight.shape[1])",
    "constant_": "write weight.fill_(value) in `with ebb.no_grad():`",
    "max_memory_allocated": _MEMORY + "[\"total\"][\"peak\"]",
    "mem_get_info": "write ebb.memory_get_available(\"cuda\")",
    "empty_cache": "write ebb.memory_trim(\"cuda\")",
    "synchronize": "write ebb.device(\"cuda\").synchronize()",
    "device_count": "ebb.list_device_kinds() names the devices",
    "set_seed": "write ebb.manual_seed()",
    "NLLLoss": "write ebb.CrossEntropyLoss() of logits, without log_softmax()",
    "L1Loss": "write abs(a - b).mean()",
    "LogSoftmax": "write x.log_softmax(-1) in forward()",
    "clip_grad_value_": "write ebb.clip_grad_norm()",
    "ModuleDict": "assign modules as attributes, or write ebb.ModuleList",
    "ParameterList": "write self.a = ebb.Parameter(tensor) for each",
    "Identity": "write ebb.Sequential()",
    "Flatten": "write x.flatten(1) in forward()",
    "Softmax": "write x.softmax(-1) in forward()",
    "LeakyReLU": "write ebb.where(x > 0, x, slope * x) in forward()",
    "Softplus": "write x.relu() + (1 + (-abs(x)).exp()).log() in forward()",
    "profiler": "write `with ebb.profile() as p:`",
    "random": "write ebb.manual_seed()",
    "seed": "write ebb.manual_seed()",
    "Size": "a shape is a tuple of ints",
    "dtype": "a dtype is an ebb.DType",
    "FloatTensor": "write ebb.Tensor(values)",
    "LongTensor": "write ebb.tensor(values)",
    "autograd": "write ebb.grad(outputs, inputs), or loss.backward(); functions of your own have no backward of their "
                "own",
}


class _Finder:
    """Has `import ebb.nn` and `from ebb import nn` say what to write."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, rest = name.partition(".")
        if package == "ebb" and rest.partition(".")[0] in _ADVICE:
            raise ImportError(_explain(rest.partition(".")[0]))


sys.meta_path.append(_Finder)


def _explain(name):
    advice = _ADVICE.get(name) or advise_on_tensor(name) or suggest_attribute(name, _list_names())
    return f"ebb has no {name!r}" + (f": {advice}" if advice else "")


def _list_names():
    """All but the structures of classes and interfaces, as ModuleClass and BlockInterface, and what is private."""
    names = dir(_Ebb)
    structures = {name + ending for name in names for ending in ("Class", "Interface")}
    return [name for name in names if not name.startswith("_") and name not in structures]


# PyTorch's short names of dtypes, which `from ebb import *` leaves out, as they are Python's own.
_DTYPES = {"long": "I64", "int": "I32", "float": "F32", "half": "F16", "bool": "BOOL"}


def __getattr__(name):
    if name == "__all__":
        return _list_names()
    if name in _DTYPES:
        return getattr(_Ebb.DType, _DTYPES[name])
    try:
        value = globals()[name] = getattr(_Ebb, name)
    except AttributeError:
        raise AttributeError(_explain(name)) from None
    return value


def __dir__():
    return sorted({*_list_names(), "__version__", "__doc__", "__file__", "__name__"})
