"""What layers of C have in PyTorch beside their own: arguments, attributes, and methods."""
import struct
import types

from gi.module import get_introspection_module
from gi.overrides._ebb_check import show
from gi.overrides._ebb_construct import c_class
from gi.overrides._ebb_functions import cross_entropy, tensor, where
from gi.overrides._ebb_module import Module
from gi.overrides._ebb_state import read_properties
from gi.overrides._ebb_tensor import DType, Tensor

Ebb = get_introspection_module("Ebb")


def _set_values(targets, sources):
    Ebb.push_grad_enabled(False)
    try:
        for target, source in zip(targets, sources):
            target.copy_(source)
    finally:
        Ebb.pop_grad_enabled()


def reset_parameters(self):
    """Draws the parameters anew, as the constructor did."""
    fresh = c_class(type(self))(**read_properties(self))
    _set_values(self.get_parameters(False), fresh.get_parameters(False))


def from_pretrained(embeddings, freeze=True, padding_idx=None):
    """A layer with a tensor [rows, width] as its weight, which is not trained unless freeze is False."""
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
        raise TypeError(f"from_pretrained(): embeddings is {show(embeddings)}: it must be a tensor [rows, width]")
    layer = Ebb.Embedding(*embeddings.shape, padding_idx=padding_idx)
    _set_values([layer.weight], [embeddings])
    layer.weight.set_requires_grad(not freeze)
    return layer


def keep_padding(layer, index):
    """Has a row of an embedding be 0 and get no gradient."""
    index %= layer.num_embeddings
    layer.__dict__["padding_idx"] = index
    _set_values([layer.weight[index]], [layer.weight.detach()[index] * 0])

    def stop(_module, args, rows):
        is_padding = (args[0] == index).unsqueeze(-1).expand(rows.shape)
        return where(is_padding, rows.detach(), rows) if rows.requires_grad else None

    layer.register_forward_hook(stop)


_call = Module.__call__


def call_with_labels(self, *args, labels=None, use_cache=None, return_dict=None, **kwargs):
    """The logits; with labels, which are shifted by one, an object with loss and logits, as models of transformers
    give. use_cache=False and return_dict=True are taken."""
    if use_cache:
        raise TypeError("use_cache=True: write model.generate(tokens, n), which has a cache")
    logits = _call(self, *args, **kwargs)
    if labels is None:
        return logits
    loss = cross_entropy(logits[:, :-1], labels[:, 1:].to(logits.device))
    return types.SimpleNamespace(loss=loss, logits=logits)


# -- random numbers ----------------------------------------------------------------------------------------------------

def manual_seed(self, seed):
    """Begins anew with a seed; returns the generator."""
    self.set_state(seed, 0)
    return self


def initial_seed(self):
    """The seed that the generator began with."""
    return self.get_seed()


_set_state = Ebb.Generator.set_state


def get_state(self):
    """The seed and the offset as 16 bytes."""
    return tensor(list(struct.pack("<QQ", self.get_seed(), self.get_offset())), dtype=DType.U8, device="cpu")


def set_state(self, seed, offset=0):
    """Continues from what get_state() gave, or from a seed and an offset."""
    if isinstance(seed, Tensor):
        seed, offset = struct.unpack("<QQ", bytes(seed.tolist()))
    _set_state(self, seed, offset)


def adapt_layers():
    """Gives the classes of C what PyTorch's have."""
    Module.reset_parameters = reset_parameters
    Ebb.Embedding.from_pretrained = staticmethod(from_pretrained)
    Ebb.Gpt.__call__ = call_with_labels
    Ebb.Generator.get_state, Ebb.Generator.set_state = get_state, set_state
    Ebb.Generator.manual_seed, Ebb.Generator.initial_seed = manual_seed, initial_seed
    if not hasattr(Ebb.CheckpointPolicy, "name"):
        Ebb.CheckpointPolicy.name = property(lambda self: self.value_nick.upper().replace("-", "_"),
                                             doc="The name, as \"MUST_SAVE\".")
