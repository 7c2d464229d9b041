"""NeMoS models fitted by glmfit: ``solver_name="SAGA[glmfit]"``, and smooth terms, `Smooth` and `fit_smooth`.

Importing this package registers the solvers "SAGA[glmfit]", "NonlinearCG[glmfit]", "Newton[glmfit]" and
"ProximalNewton[glmfit]". Works with NeMoS 0.2.8 and newer; facts and limits are in docs/how_to/use_with_nemos.md.
"""

try:
    import nemos as _nemos  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "nemos":  # something that NeMoS needs
        raise
    raise ModuleNotFoundError(
        'glmfit.plugins.nemos needs NeMoS, which is not installed: run  python -m pip install -e ".[nemos]"  in the '
        "checkout of glmfit.",
        name="nemos",
    ) from None

from .registry import register
from .results import Certificate, FitState
from .smooth import Smooth
from .smooth_fit import fit_smooth
from .solver import SAGA, Newton, NonlinearCG, ProximalNewton, report
from .terms import REGULARIZERS

__all__ = [
    "REGULARIZERS", "SAGA", "Certificate", "FitState", "Newton", "NonlinearCG", "ProximalNewton", "Smooth",
    "fit_smooth", "register", "report",
]  # fmt: skip

register()
