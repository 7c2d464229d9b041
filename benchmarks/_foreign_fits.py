"""Fits that run in the Python of another package: python _foreign_fits.py FUNCTION GIVEN.npz MADE.npz ARGUMENTS.

Only NumPy and the measured package are needed. Every function takes a dictionary of arrays and plain arguments, and
returns arrays; ``seconds`` cover the fits only, with data in memory and libraries imported.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import warnings

import numpy as np


def version(given, package: str) -> dict:
    """Import a package and return its version."""
    from importlib import import_module, metadata

    import_module(package)
    return {"version": metadata.version({"sklearn": "scikit-learn"}.get(package, package))}


# -------------------------------------------------------------------------------------- adelie, glmfit


def adelie_paths(given, tol: float, precision: str, n_threads: int, limit_s: float, repeats: int = 1) -> dict:
    """Path of strengths of every neuron, one after the other, by adelie; nan if it fails or takes too long.

    An offset at the mean rate puts the null model at an intercept of 0, from which adelie starts; the model is the
    same. Early stopping by explained deviance is off, because all strengths are needed. In single precision, rounding
    can prevent convergence, so coordinate descent is limited to 2 000 rounds; a signal ends fits that take too long.
    """
    import adelie

    def end(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, end)
    X, strengths, groups = np.asfortranarray(given["X"], precision), given["strengths"], given["groups"]
    (n_strengths, n_neurons), d = strengths.shape, X.shape[1]
    coef, intercept = np.full((n_strengths, d, n_neurons), np.nan), np.full((n_strengths, n_neurons), np.nan)
    seconds = np.zeros((repeats, n_neurons))
    matrix = adelie.matrix.dense(X, method="naive", n_threads=n_threads)
    how = {"tol": tol, "irls_tol": tol, "n_threads": n_threads, "early_exit": False, "progress_bar": False}
    how |= {"max_iters": 2000} if precision == "float32" else {}
    for n in range(n_neurons):
        y = np.ascontiguousarray(given["Y"][:, n], precision)
        shift = np.log(y.mean(dtype=np.float64))
        offsets, path = np.full(len(y), shift, precision), strengths[:, n].astype(precision)
        for repeat in range(repeats):
            start = time.perf_counter()
            try:
                signal.setitimer(signal.ITIMER_REAL, limit_s)
                state = adelie.grpnet(
                    matrix, adelie.glm.poisson(y), groups=groups, lmda_path=path, offsets=offsets, adev_tol=1.0, **how
                )
                found = state.betas.toarray()
            except TimeoutError:
                found = ()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            seconds[repeat, n] = time.perf_counter() - start
            if len(found) < n_strengths:
                break
            coef[:, :, n], intercept[:, n] = found, np.asarray(state.intercepts, np.float64) + shift
    return {"coef": coef, "intercept": intercept, "seconds": seconds}


def glmfit_paths(given, tol: float, repeats: int = 1) -> dict:
    """Path of strengths of all neurons by glmfit; the first of the fits compiles."""
    from glmfit import PopulationGLM

    X, Y, strengths, groups = (given[name] for name in ("X", "Y", "strengths", "groups"))
    more = {}
    if len(groups) < X.shape[1]:
        more = {"groups": np.searchsorted(groups, np.arange(X.shape[1]), side="right") - 1}
    model, seconds = PopulationGLM("exp", "GroupLasso" if more else "Lasso", tol=tol, **more), []
    for _ in range(repeats):
        start = time.perf_counter()
        path = model.path(X, Y, strengths)
        seconds.append(time.perf_counter() - start)
    return {"coef": path.coef, "intercept": path.intercept, "seconds": np.array(seconds)}


# -------------------------------------------------------------------------- softmax of few classes


def softmax(
    given, package: str, solver: str, precision: str, tols: list, strength: float, repeats: int, limit_s: float
):
    """Softmax with a ridge at one tolerance after another, until a fit exceeds the limit or all fits ten times it.

    Returns arrays (tolerance, ...).
    """
    X, y = np.ascontiguousarray(given["X"], precision), given["y"]
    make = {"cyanure": _cyanure, "sklearn": _sklearn, "glmfit": _glmfit}[package](solver, strength, len(y))
    found, spent = {"coef": [], "intercept": [], "seconds": []}, 0.0
    for tol in tols:
        seconds = []
        for _ in range(repeats):
            model = make(tol)
            start = time.perf_counter()
            model.fit(X, y)
            seconds.append(time.perf_counter() - start)
            if seconds[-1] > limit_s:
                break
        seconds += [min(seconds)] * (repeats - len(seconds))
        coef = np.asarray(model.coef_)
        found["coef"].append(coef.T if package == "sklearn" else coef)
        found["intercept"].append(np.ravel(model.intercept_))
        found["seconds"].append(seconds)
        spent += sum(seconds)
        if min(seconds) > limit_s or spent > 10 * limit_s:
            break
    return {name: np.array(values) for name, values in found.items()}


def _cyanure(solver, strength, _n):
    from cyanure.estimators import Classifier

    how = {"loss": "multiclass-logistic", "penalty": "l2", "lambda_1": strength, "fit_intercept": True}
    return lambda tol: Classifier(**how, solver=solver, tol=tol, max_iter=10_000, verbose=False)


def _sklearn(solver, strength, n):
    from sklearn.linear_model import LogisticRegression

    return lambda tol: LogisticRegression(C=1 / (n * strength), solver=solver, tol=tol, max_iter=10_000)


def _glmfit(solver, strength, _n):
    from glmfit import SoftmaxGLM

    SoftmaxGLM()  # imports
    return lambda tol: SoftmaxGLM(regularizer_strength=strength, solver_name=solver, tol=tol, max_epochs=3000)


# ------------------------------------------------------------------------- banded ridge, squared loss


def himalaya_bands(given, precision: str, n_folds: int, repeats: int) -> dict:
    """Choose the shares of the bands and a strength for every response among the candidates, and fit, by himalaya."""
    from himalaya.ridge import solve_group_ridge_random_search
    from sklearn.model_selection import KFold

    X, Y = np.ascontiguousarray(given["X"], precision), np.ascontiguousarray(given["Y"], precision)
    bands = np.split(X, np.cumsum(given["sizes"])[:-1], axis=1)
    shares, alphas = given["shares"].astype(precision), given["alphas"].astype(precision)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        deltas, coef, scores, intercept = solve_group_ridge_random_search(
            bands, Y, n_iter=shares, alphas=alphas, cv=KFold(n_folds), fit_intercept=True, local_alpha=True,
            return_weights=True, progress_bar=False, warn=False,
        )  # fmt: skip
        seconds.append(time.perf_counter() - start)
    return {"coef": coef, "intercept": intercept, "deltas": deltas, "scores": scores, "seconds": np.array(seconds)}


def himalaya_ridge(given, precision: str, solver: str, repeats: int) -> dict:
    """Banded ridge at given strengths, one per band, by himalaya."""
    from himalaya.ridge import Ridge

    X, Y = np.ascontiguousarray(given["X"], precision), np.ascontiguousarray(given["Y"], precision)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        unit = (1 / np.sqrt(len(X) * given["strength"])).astype(precision)
        model = Ridge(alpha=1.0, fit_intercept=True, solver=solver).fit(X * unit, Y)
        coef = model.coef_ * unit[:, None]
        seconds.append(time.perf_counter() - start)
    return {"coef": coef, "intercept": np.asarray(model.intercept_), "seconds": np.array(seconds)}


# ------------------------------------------------------------------------------ all pairs, squared loss


def implicit_als(given, precision: str, cg: bool, confidence: float, regularization: float, limit_s: float) -> dict:
    """Alternating least squares of implicit from given embeddings: embeddings and seconds of every iteration."""
    import scipy.sparse
    from implicit.cpu.als import AlternatingLeastSquares

    P, Q = (np.array(given[side], precision) for side in "PQ")
    shape = len(P), len(Q)
    pairs = scipy.sparse.csr_matrix((np.ones(len(given["left"]), "f4"), (given["left"], given["right"])), shape=shape)
    found = {"P": [P.copy()], "Q": [Q.copy()], "seconds": [0.0]}

    def look(_iteration, seconds, *_):
        for side, now in (("P", model.user_factors), ("Q", model.item_factors)):
            found[side].append(np.array(now))
        found["seconds"].append(seconds)
        if sum(found["seconds"]) > limit_s:
            raise KeyboardInterrupt

    model = AlternatingLeastSquares(
        P.shape[1], regularization, confidence, dtype=np.dtype(precision).type, use_cg=cg, iterations=300
    )
    model.user_factors, model.item_factors = P, Q
    try:
        model.fit(pairs, show_progress=False, callback=look)
    except KeyboardInterrupt:
        pass
    return {name: np.array(values) for name, values in found.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    function, given_file, made_file, arguments = sys.argv[1:]
    with np.load(given_file, allow_pickle=False) as stored:
        arrays = dict(stored)
    made = globals()[function](arrays, **json.loads(arguments))
    np.savez(made_file, **made)
