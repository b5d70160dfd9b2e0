"""DeepSpeed's interface to checkpointing: one configuration for the process."""
import json
import os

from gi.module import get_introspection_module
from gi.overrides._ebb_args import pack_result
from gi.overrides._ebb_errors import guard
from gi.overrides._ebb_wrap import call_checkpointed
from gi.repository import GObject

Ebb = get_introspection_module("Ebb")

__all__ = ["checkpointing_configure", "checkpointing_checkpoint"]

_configure = guard(Ebb.checkpointing_configure)
_WORLD_SIZES = ("get_model_parallel_world_size", "get_tensor_model_parallel_world_size")


class _Unit(GObject.Object):
    """What C asks a model-parallel unit for."""

    __module__ = "ebb"  # a class of gi.overrides would get no GType of its own
    __gtype_name__ = "EbbPythonModelParallelUnit"

    world_size = GObject.Property(type=int)


def to_mpu(mpu, function):
    """What C asks for ranks that a model is divided among."""
    if mpu is None or isinstance(mpu, GObject.Object):
        return mpu
    for name in _WORLD_SIZES:
        if callable(getattr(mpu, name, None)):
            return _Unit(world_size=getattr(mpu, name)())
    raise TypeError(f"{function}(): mpu is {mpu!r}: it must be None, or an object with "
                    f"{_WORLD_SIZES[0]}() or a property world_size")


def to_json(function, config):
    """A configuration as C takes it: its text, or the path of a file."""
    if isinstance(config, str):
        return config
    if isinstance(config, os.PathLike):
        return os.path.abspath(os.fsdecode(config))  # never taken for JSON, whatever its name
    if isinstance(config, dict):
        return json.dumps(config, default=str)  # other parts of it may hold anything
    raise TypeError(f"{function}(): config is {config!r}: it must be a dict, the text of a JSON object, or the path of "
                    "a file")


def _one_of(name, value, other_name, other):
    if value is not None and other is not None:
        raise TypeError(f"checkpointing_configure() got {name} and {other_name}, which are the same: leave one of both "
                        "out")
    return value if value is not None else other


def checkpointing_configure(mpu_=None, deepspeed_config=None, partition_activations=None,
                            contiguous_checkpointing=None, num_checkpoints=None, checkpoint_in_cpu=None,
                            synchronize=None, profile=None, *, mpu=None, config=None):
    """Sets what checkpointing_checkpoint() does and checkpointing_get_options() gives, for the process.

    Begins with the defaults, then does what "activation_checkpointing" of config says, which may be a configuration of
    DeepSpeed as a dict, as JSON text (it begins with "{") or in a file, then what the arguments say that are not None.
    mpu: knows the ranks that a model is divided among: an Ebb.Mesh with a dimension "tensor", their Ebb.ProcessGroup,
    or DeepSpeed's and Megatron-LM's object; None for one process alone. partition_activations: demands
    ranks. contiguous_checkpointing: what checkpoints keep is held in buffers for num_checkpoints of them.
    checkpoint_in_cpu: it is held in host memory. synchronize: devices are waited for where each forward and backward
    begins and ends. profile: and their times are logged. Configuring again replaces all of it. mpu_ and
    deepspeed_config, as DeepSpeed calls them, are mpu and config.
    """
    mpu, config = _one_of("mpu", mpu, "mpu_", mpu_), _one_of("config", config, "deepspeed_config", deepspeed_config)
    overrides = {"partition_activations": partition_activations, "contiguous_checkpointing": contiguous_checkpointing,
                 "num_checkpoints": num_checkpoints, "checkpoint_in_cpu": checkpoint_in_cpu,
                 "synchronize": synchronize, "profile": profile}
    text = to_json("checkpointing_configure", config) if config is not None else None
    _configure(to_mpu(mpu, "checkpointing_configure"), text, pack_result(overrides))


def checkpointing_checkpoint(func, /, *args, **kwargs):
    """Calls func(*args, **kwargs) as checkpoint() does, with what checkpointing_configure() has set."""
    return call_checkpointed("checkpointing_checkpoint", Ebb.checkpointing_get_options(), func, args, kwargs)
