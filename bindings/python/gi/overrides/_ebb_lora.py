"""LoRA: low-rank branches of a model's linear layers, which are trained in place of its weights."""
from gi.module import get_introspection_module
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_models import get_path
from gi.overrides._ebb_options import Options
from gi.overrides._ebb_wrap import _check_module

Ebb = get_introspection_module("Ebb")

__all__ = ["lora", "lora_load", "lora_save"]

_wrap, _load, _save = guard(Ebb.lora_wrap), guard(Ebb.lora_load), guard(Ebb.lora_save)

_options = Options(
    Ebb.LoraOptions, converters={"targets": lambda value: None if value == "all-linear" else value},
    hints={"r": "write rank=", "lora_alpha": "write alpha=", "lora_dropout": "write dropout=",
           "target_modules": "write targets=", "exclude_modules": "write exclude=", "use_rslora": "write rslora=",
           "adapter_name": "write adapter=",
           "bias": "set requires_grad of the biases to train once the model is wrapped",
           "modules_to_save": "set requires_grad of the parameters to train once the model is wrapped",
           "layers_to_transform": "name the layers in targets, as \"layers.3.*\""})


@_options.show
def lora(model, **options):
    """Adds an adapter to a model: low-rank branches of its linear layers, which alone are trained; returns the model.

    rank, alpha, dropout: PEFT's r, lora_alpha and lora_dropout; branches are multiplied by alpha / rank, where alpha 0
    stands for the rank, or with rslora=True by alpha / sqrt(rank). targets: the layers, as ["q_proj", "v_proj"]: ends
    of their paths, with * and ?; None: all linear layers but lm_head. exclude: those among them that get no branch.
    adapter: its name. options: an ebb.LoraOptions in place of all others.
    """
    _check_module("lora", "model", model)
    _wrap(model, _options.make("lora", options))
    return model


def lora_load(model, folder, adapter="default"):
    """Adds the adapter of a folder that ebb.lora_save() or PEFT has saved, or of a .gguf file; returns the model."""
    _check_module("lora_load", "model", model)
    _load(model, get_path("lora_load", folder), adapter)
    return model


def lora_save(model, folder, adapter=None):
    """Saves an adapter, the one that is chosen or that of a name, as a folder that PEFT loads, or as a .gguf file."""
    _check_module("lora_save", "model", model)
    _save(model, get_path("lora_save", folder), adapter)
