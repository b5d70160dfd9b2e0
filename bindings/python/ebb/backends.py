"""Switches by the names of torch.backends: they are taken, and change nothing."""
from types import SimpleNamespace

cuda = SimpleNamespace(
    matmul=SimpleNamespace(allow_tf32=False), is_built=lambda: True, enable_flash_sdp=lambda enabled: None,
    enable_math_sdp=lambda enabled: None, enable_mem_efficient_sdp=lambda enabled: None)
cudnn = SimpleNamespace(benchmark=False, deterministic=True, allow_tf32=False, enabled=False,
                        is_available=lambda: False)
mps = SimpleNamespace(is_available=lambda: False, is_built=lambda: False)
mkldnn = SimpleNamespace(is_available=lambda: False)
