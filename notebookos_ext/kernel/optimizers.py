"""torch optimizers: what others hang on the instance travels with it.

torch's own state is defaults, state and parameter groups. A learning rate scheduler replaces the
instance's `step` by one that tells it of calls, and looks for that replacement later; hooks that
the user registered are on the instance too.
"""

from __future__ import annotations

import sys
from typing import Any

from notebookos_ext.kernel.reduction import Reduced, Reduction


def reduce_optimizer(pickler: Reduction, optimizer: Any) -> Reduced:
    """The reduction that torch offers, with the whole instance dictionary for its state."""
    reduced = pickler.plain(optimizer)
    base = sys.modules["torch.optim.optimizer"].Optimizer
    if type(optimizer).__getstate__ is not base.__getstate__ or not isinstance(reduced, tuple):
        return reduced
    make, arguments, _, *rest = reduced
    return make, arguments, dict(vars(optimizer)), *rest
