"""NeMoS models fitted by glmfit: ``solver_name="SAGA[glmfit]"``.

Importing this package registers the solver. Works with NeMoS 0.2.8 and newer; facts and limits are in
docs/how_to/use_with_nemos.md.
"""

from .results import Certificate, FitState
from .solver import SAGA, register, report
from .terms import REGULARIZERS

__all__ = ["REGULARIZERS", "SAGA", "Certificate", "FitState", "register", "report"]
