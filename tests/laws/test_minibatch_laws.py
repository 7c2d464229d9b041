"""Proximal step of a minibatch: three solvers, one answer (identity 10 of the softmax spec)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glmfit.stochastic import implicit

SOLVERS = {
    "dual": lambda batch: implicit.dual_ascent(batch, 60),
    "jacobi": lambda batch: implicit.jacobi_ascent(batch, 3000),
    "newton": lambda batch: implicit.newton_cg(batch, 40, 200),
}
JITTED = {name: jax.jit(solver) for name, solver in SOLVERS.items()}


SINGULAR = {
    "rank 1": lambda rng, n: rng.normal(size=(n, 1)),
    "one row, repeated": lambda rng, n: np.ones((n, 1)),
    "two rows, repeated": lambda rng, n: rng.normal(size=(2, 4))[np.arange(n) % 2],
    "on a circle": lambda rng, n: (lambda angle: np.column_stack([np.cos(angle), np.sin(angle)]))(rng.random(n)),
    "rows of zeros": lambda rng, n: rng.normal(size=(n, 4)) * (np.arange(n) % 2)[:, None],
}


def random_batch(rng, n=6, q=7, d=4, c=1.0, orthogonal=False, X=None):
    """A batch of n rows of d features and q touched classes; d below n makes the mobility singular."""
    X = rng.normal(size=(n, d)) if X is None else X
    if orthogonal:
        X = np.linalg.qr(rng.normal(size=(n, n)))[0] * rng.uniform(0.5, 2, n)[:, None]
    label = rng.integers(0, q, n)
    log_a = np.where(rng.random((n, q)) < 0.7, np.log(5.0), -np.inf)
    log_a[np.arange(n), label] = -np.inf
    base = 2 * rng.normal(size=(n, q))
    numbers = base, X @ X.T, label, log_a, c * rng.uniform(0.5, 2, n), rng.uniform(0, 3, n)
    return implicit.Batch(*map(jnp.asarray, numbers))


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize("c", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("d", [4, 9])
def test_three_solvers_agree(c, d, x64, rng):
    batch = random_batch(rng, c=c, d=d)
    answers = {name: solver(batch) for name, solver in JITTED.items()}
    scores = {name: batch.base - batch.mobility @ G for name, (G, _) in answers.items()}
    for name in ("jacobi", "newton"):
        np.testing.assert_allclose(scores[name], scores["dual"], atol=1e-8)
        np.testing.assert_allclose(answers[name][0], answers["dual"][0], atol=1e-8)
        np.testing.assert_allclose(answers[name][1], answers["dual"][1], atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", SINGULAR)
def test_newton_copes_with_a_singular_mobility(rows, x64):
    """Enough draws that each kind overflowed when conjugate gradients continued in directions that move no score."""
    newton, dual = JITTED["newton"], jax.jit(lambda b: implicit.dual_ascent(b, 1000))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        batch = random_batch(rng, n=5, q=3, c=(0.3, 3.0)[seed % 2], X=SINGULAR[rows](rng, 5))
        G, u = newton(batch)
        exact, u_exact = dual(batch)
        check_stationary(batch, G, u)
        np.testing.assert_allclose(G, exact, atol=1e-6)
        np.testing.assert_allclose(u, u_exact, atol=1e-6)
        single = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, batch)
        np.testing.assert_allclose(newton(single)[0], G, atol=2e-4)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("n, d, c", [(3, 1, 1.0), (5, 1, 3.0), (6, 2, 3.0)])
def test_newton_is_finite_and_correct_on_batches_of_few_columns(n, d, c, x64):
    """60 batches at once, in both precisions; single precision is compared with double."""
    batches = [random_batch(np.random.default_rng(seed), n=n, q=3, d=d, c=c) for seed in range(60)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *batches)
    newton = jax.jit(jax.vmap(SOLVERS["newton"]))
    G, u = newton(stacked)
    for i, batch in enumerate(batches):
        check_stationary(batch, G[i], u[i])
    single = jax.tree.map(lambda a: a.astype(jnp.float32) if a.dtype == jnp.float64 else a, stacked)
    for found, exact in zip(newton(single), (G, u), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, exact, atol=2e-5 * (1 + float(jnp.abs(exact).max())))


@pytest.mark.thorough
@pytest.mark.parametrize("rows", SINGULAR)
def test_newton_copes_with_a_singular_mobility_and_a_step_far_too_long(rows, x64):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        batch = random_batch(rng, n=5, q=3, c=1000.0, X=SINGULAR[rows](rng, 5))
        check_stationary(batch, *JITTED["newton"](batch), atol=0.03)  # pushes are about a thousand


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", SOLVERS)
def test_the_answer_is_stationary(name, x64, rng):
    batch = random_batch(rng)
    check_stationary(batch, *JITTED[name](batch))


def check_stationary(batch, G, u, atol=1e-8):
    """Raise AssertionError unless the pushes are those of the scores they lead to."""
    G, u = np.asarray(G), np.asarray(u)
    at = np.arange(len(u))
    S = np.asarray(batch.base - batch.mobility @ G)
    delta = S - S[at, batch.label][:, None]
    c, log_a = np.asarray(batch.c)[:, None], np.asarray(batch.log_a)
    push = c * np.exp(log_a + delta - u[:, None])
    push[at, batch.label] = -push.sum(axis=1)
    np.testing.assert_allclose(G, push, atol=atol)
    pull = -push[at, batch.label]
    np.testing.assert_allclose(u + c[:, 0] * (1 - np.exp(-u)), batch.u + pull, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_orthogonal_rows_are_solved_one_by_one(name, x64, rng):
    batch = random_batch(rng, orthogonal=True)
    G, u = JITTED[name](batch)
    for i in range(len(batch.c)):
        delta = batch.base[i] - batch.base[i, batch.label[i]]
        mobility = batch.mobility[i, i]
        one = implicit.implicit_step(batch.c[i], batch.log_a[i], delta, mobility, batch.u[i])
        np.testing.assert_allclose(G[i].at[batch.label[i]].set(0), one.push, atol=1e-9)
        np.testing.assert_allclose(u[i], one.u, atol=1e-9)


@pytest.mark.slow
def test_the_first_dual_sweep_is_a_sequence_of_single_steps(x64, rng):
    batch = random_batch(rng)
    G, u = jax.jit(lambda b: implicit.dual_ascent(b, 1))(batch)
    scores = np.array(batch.base)
    for i in range(len(batch.c)):
        y, mobility = int(batch.label[i]), batch.mobility[i, i]
        step = implicit.implicit_step(
            batch.c[i], batch.log_a[i], jnp.asarray(scores[i] - scores[i, y]), mobility, batch.u[i]
        )
        push = np.array(step.push)
        push[y] = -step.pull
        np.testing.assert_allclose(G[i], push, atol=1e-13)
        np.testing.assert_allclose(u[i], step.u, atol=1e-13)
        scores -= np.outer(batch.mobility[:, i], push)


@pytest.mark.slow
def test_a_few_jacobi_sweeps_already_descend(x64, rng):
    """Every sweep lowers the objective of the step: monotone without a line search."""
    batch = random_batch(rng, c=10.0)

    def objective(G):
        S = batch.base - batch.mobility @ G
        delta = S - S[jnp.arange(6), batch.label][:, None]
        total = jnp.log1p(jnp.sum(jnp.exp(batch.log_a + delta), axis=1))
        from glmfit.stochastic.implicit import uprox

        u = uprox(batch.c, total, batch.u)
        value = batch.c * (u + jnp.exp(total - u)) + (u - batch.u) ** 2 / 2
        return float(jnp.sum(value) + jnp.sum(G * (batch.mobility @ G)) / 2)

    values = [objective(implicit.jacobi_ascent(batch, k)[0]) for k in (0, 1, 3, 8, 30)]
    assert np.all(np.diff(values) < 0)
