"""DeepSpeed's interface to checkpointing, as deepspeed.checkpointing, with its names beside Ebb's."""
from typing import Any

from ebb import (checkpointing_checkpoint as checkpoint, checkpointing_configure as configure,
                 checkpointing_get_config as get_config, checkpointing_get_options as get_options,
                 checkpointing_get_profile as get_profile, checkpointing_is_configured as is_configured,
                 checkpointing_reset as reset)
from ebb._advice import advise_in
from ebb.compat import (CheckpointFunction as CheckpointFunction, CudaRNGStatesTracker as CudaRNGStatesTracker,
                        get_cuda_rng_tracker as get_cuda_rng_tracker,
                        model_parallel_cuda_manual_seed as model_parallel_cuda_manual_seed)

__all__ = ["checkpoint", "configure", "get_config", "get_options", "get_profile", "is_configured", "reset",
           "CheckpointFunction", "CudaRNGStatesTracker", "get_cuda_rng_tracker", "model_parallel_cuda_manual_seed"]


__path__: "list[str]" = []  # so that a from … import asks for advice, as ebb's finder gives it


def __getattr__(name: str) -> Any:
    return advise_in("checkpointing", name)
