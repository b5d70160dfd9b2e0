"""Lower precision by the names of torch.cuda.amp."""
from ebb.amp import GradScaler as GradScaler, autocast as autocast
