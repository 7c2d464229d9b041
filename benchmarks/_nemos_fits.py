"""NeMoS fits that nemos_backend.py times in a separate process, with the NeMoS of a source tree."""

from __future__ import annotations

import time
import warnings

import numpy as np

HMM_ROWS, HMM_FEATURES = 20_000, 6
PASSES = 20


def glm_hmm(repeats: int) -> dict:
    """Fit a hidden Markov model of choices, two states, by NeMoS's own solver in the M-step and by ours."""
    import nemos
    from nemos.glm_hmm import GLMHMM

    import glmfit.plugins.nemos  # noqa: F401  registers the solvers

    rng = np.random.default_rng(0)
    X = rng.normal(size=(HMM_ROWS, HMM_FEATURES))
    state = np.cumsum(rng.random(HMM_ROWS) < 0.02) % 2
    weight = rng.normal(size=(2, HMM_FEATURES))
    y = (rng.random(HMM_ROWS) < 1 / (1 + np.exp(-np.sum(X * weight[state], axis=1)))).astype(float)
    found = {"nemos": nemos.__version__, "rows": HMM_ROWS, "features": HMM_FEATURES}
    for solver in (None, "SAGA[glmfit]"):
        given = {"regularizer": "Ridge", "regularizer_strength": 1e-3, "maxiter": 100, "solver_name": solver}
        seconds = []
        for _ in range(repeats + 1):
            model = GLMHMM(n_states=2, observation_model="Bernoulli", **given)
            seconds.append(_seconds(lambda model=model: model.fit(X, y)))
        found[solver or "own"] = {"seconds": seconds, "score": float(model.score(X, y))}
    return found


def stochastic(x_file: str, y_file: str, out: str, strength: float, batch_size: int) -> dict:
    """Fit from a data loader by our solver, and by NeMoS's variance-reduced gradients with the same limit on passes."""
    import jax
    import nemos
    from nemos.batching import ArrayDataLoader

    import glmfit.plugins.nemos  # noqa: F401  registers the solvers

    X, Y = np.load(x_file), np.load(y_file)
    loader = ArrayDataLoader(X, Y, batch_size=batch_size, shuffle=True)
    found, kept = {"nemos": nemos.__version__}, {}
    for name, solver, passes in (("ours", "SAGA[glmfit]", PASSES), ("own", "SVRG", PASSES)):
        model = nemos.glm.PopulationGLM(
            inverse_link_function=jax.nn.softplus, regularizer="Ridge", regularizer_strength=strength,
            solver_name=solver,
        )  # fmt: skip
        seconds = _seconds(lambda model=model, passes=passes: model.stochastic_fit(loader, num_epochs=passes))
        found[name] = {"seconds": seconds, "passes": passes}
        kept[f"{name}_coef"], kept[f"{name}_intercept"] = np.asarray(model.coef_), np.asarray(model.intercept_)
        if name == "ours":
            state = model.solver_state_
            found[name] |= {"passes": int(state.num_steps), "converged": bool(state.converged),
                            "gap": float(np.max(state.report.gap))}  # fmt: skip
    np.savez(out, **kept)
    return found


def _seconds(fit) -> float:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit()
    return time.perf_counter() - start
