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


class _Unit(GObject.Object):
    """What C asks a model-parallel unit for."""

    __module__ = "ebb"  # a class of gi.overrides would get no GType of its own
    __gtype_name__ = "EbbPythonModelParallelUnit"

    model_parallel_world_size = GObject.Property(type=int, default=-1)
    model_parallel_rank = GObject.Property(type=int, default=-1)
    model_parallel_group = GObject.Property(type=Ebb.ProcessGroup)
    data_parallel_world_size = GObject.Property(type=int, default=-1)
    data_parallel_rank = GObject.Property(type=int, default=-1)
    data_parallel_group = GObject.Property(type=Ebb.ProcessGroup)


_UNIT = {f"{side}_{what}": [f"get_{prefix}{side}_{what}" for prefix in prefixes]
         for side, prefixes in (("model_parallel", ("tensor_", "")), ("data_parallel", ("",)))
         for what in ("world_size", "rank", "group")}


def _read_unit(mpu, names, function):
    """What the first of these methods gives that mpu has; None without one."""
    for name in names:
        if callable(getattr(mpu, name, None)):
            value = getattr(mpu, name)()
            is_group = name.endswith("group")
            if not isinstance(value, Ebb.ProcessGroup if is_group else int):
                raise TypeError(f"{function}(): mpu.{name}() gives {value!r}: it must give "
                                f"{'an ebb.ProcessGroup' if is_group else 'an int'}")
            if not is_group and not 0 <= value < 2**31:
                raise ValueError(f"{function}(): mpu.{name}() gives {value!r}: it must be from 0 to {2**31 - 1}")
            return value
    return None


def to_mpu(mpu, function):
    """What C asks for ranks that a model is divided among."""
    if mpu is None or isinstance(mpu, GObject.Object):
        return mpu
    values = {name: _read_unit(mpu, names, function) for name, names in _UNIT.items()}
    if values["model_parallel_world_size"] is None and values["model_parallel_group"] is None:
        raise TypeError(f"{function}(): mpu is {mpu!r}: it must be None, an ebb.Mesh, an ebb.ProcessGroup, or an "
                        "object with get_model_parallel_world_size() or a property world_size")
    return _Unit(**{name: value for name, value in values.items() if value is not None})


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
    mpu: knows the ranks that a model is divided among: an ebb.Mesh, by its model dimension ("tensor" at first), their
    ebb.ProcessGroup, or an object as DeepSpeed's and Megatron-LM's, with get_model_parallel_group(), _rank() and
    _world_size(), the same of get_tensor_model_parallel_* and get_data_parallel_*; None for one process alone.
    partition_activations: demands ranks. contiguous_checkpointing: what checkpoints keep is held in buffers for
    num_checkpoints of them.
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
