"""Steps that sample classes, compared with loops over rows in slow NumPy (identities 7, 11, 12, 14, 20)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jaxprs import equations
from oracles.softmax import pair_step

from glmfit.solvers import NCE, OVE, SGD, ImplicitSGD, ImportanceSampling, SoftmaxProx, UMax
from glmfit.stochastic import class_kernels as sampling
from glmfit.stochastic import class_rows, class_sampler, implicit
from glmfit.stochastic.class_rows import ClassData, dense_rows, sparse_rows
from glmfit.stochastic.implicit import log1p_sum_exp

N, D, K, M = 40, 5, 7, 3
LOG_A = float(np.log((K - 1) / M))
TAU = 0.7  # step of the auxiliary variables if it is a separate one
UNITS = np.append(np.linspace(0.5, 2.0, D), 0.0)  # factor of the ridge of every column, the intercept last
SOLVERS = {
    "implicit": ImplicitSGD(),
    "implicit, one step for all": ImplicitSGD(auxiliary_step=None),
    "implicit, absolute": ImplicitSGD(alpha=1.0),
    "umax": UMax(),
    "umax, one step for all": UMax(auxiliary_step=None),
    "gradient": SGD(),
    "gradient, absolute": UMax(alpha=1.0, delta=1e30),  # never raised
    "ove": OVE(),
    "nce": NCE(),
    "sampled softmax": ImportanceSampling(),
}
LENGTH = {"gradient": 1e-3, "gradient, absolute": 1e-3}  # longer plain gradient steps overflow, as expected
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
every_layout = pytest.mark.parametrize("layout", ["dense", "sparse"])


@pytest.fixture
def features(rng):
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    X[3] = 0
    return X


def make(rng, X, layout="dense", intercept=True, offset=True, dtype=np.float64):
    rows = dense_rows(X, intercept, dtype) if layout == "dense" else sparse_rows(sp.csr_array(X), intercept, dtype)
    numbers = rng.uniform(0.5, 2, N).astype(dtype), np.arange(N, dtype=np.int32)
    label, offsets = rng.integers(0, K, N).astype(np.int32), rng.normal(size=(N, K)).astype(dtype)
    row = np.arange(N, dtype=np.int32)
    arrays = label, row, *numbers, offsets if offset else None, np.arange(N + 1, dtype=np.int32), numbers[0]
    return ClassData(rows, *(None if a is None else jnp.asarray(a) for a in arrays))


def start(rng, intercept=True, dtype=np.float64):
    V = 0.5 * rng.normal(size=(K, D + intercept))
    return V.astype(dtype), rng.uniform(0, 2, N).astype(dtype)


def weights(V, u):
    return sampling.Weights(jnp.array(V), jnp.array(u), jnp.ones(V.shape[1], V.dtype))


def length(solver):
    return next((LENGTH[name] for name in LENGTH if SOLVERS[name] == solver), 0.5)


def schedule(stop, c=0.5, strength=0.0, begin=0, log_a=LOG_A, intercept=True, tau=TAU):
    return sampling.Span(begin, stop, c, strength * UNITS[: D + intercept], log_a, np.inf, tau)


def pace(solver, c):
    return c if solver.auxiliary_step is None else TAU


def take_steps(data, weights, order, negatives, span, visit, solver):
    return sampling.take_steps(sampling.measure(data, span, solver), weights, order, negatives, span, visit, solver)


def single_steps(data, weights, order, negatives, span, solver):
    seen = sampling.look_up(sampling.measure(data, span, solver), order, negatives)
    return sampling.take_steps(seen, weights, None, None, span, sampling.one_row, solver)


def finished(weights):
    return np.array(weights.V) * np.array(weights.scale), np.array(weights.u)


def draws(rng, data, steps, m=M):
    order = rng.integers(0, N, steps).astype(np.int32)
    label = np.asarray(data.label)[order]
    C = np.stack([rng.choice(np.delete(np.arange(K), y), m, replace=False) for y in label]).astype(np.int32)
    return jnp.asarray(order), jnp.asarray(C)


def loop(data, X, V, u, order, C, c, strength, solver, intercept=True):
    """Take the same steps on plain weights, applying the ridge to all classes in every step."""
    W, u = V.copy(), u.copy()
    jitted = jax.jit(partial(pair_step, solver))
    x1 = np.column_stack([X, np.ones(N)]) if intercept else X
    change = c * strength * UNITS[: x1.shape[1]]
    label, weight = np.asarray(data.label), np.asarray(data.weight)
    for i, negative in zip(np.asarray(order), np.asarray(C), strict=True):
        y, x = label[i], x1[i]
        d = 1 + change
        before = W / d if solver.implicit else W
        s = before @ x + (0 if data.offset is None else np.asarray(data.offset)[i])
        pushes, pull, after = jitted(
            c * weight[i], LOG_A, s[negative], s[y], np.sum(x**2 / d), u[i], pace(solver, c * weight[i])
        )
        W = before if solver.implicit else W * (1 - change)
        metric = x / d if solver.implicit else x
        for k, push in zip(negative, np.asarray(pushes), strict=True):
            W[k] -= push * metric
        W[y] += float(pull) * metric
        if solver.auxiliary:
            u[i] = float(after)
    return W, u


@pytest.mark.thorough(cases=10)
@every_solver
@every_layout
@pytest.mark.parametrize("strength", [0.0, 0.02])
def test_single_steps_match_a_loop(solver, layout, strength, features, rng, x64):
    """Includes identity 12: a ridge applied through scales of the columns is the ridge of each."""
    data = make(rng, features, layout)
    V, u = start(rng)
    order, C = draws(rng, data, 200)
    args = data, weights(V, u), order, C
    c = length(solver)
    W, u_new = finished(single_steps(*args, schedule(200, c, strength), solver))
    W_loop, u_loop = loop(data, features, V, u, order, C, c, strength, solver)
    np.testing.assert_allclose(W, W_loop, atol=1e-11)
    np.testing.assert_allclose(u_new, u_loop, atol=1e-11)


@pytest.mark.thorough(cases=5)
@every_solver
@pytest.mark.parametrize("intercept", [True, False])
def test_the_sum_over_classes_is_conserved(solver, intercept, features, rng, x64):
    """Identity 14: without a ridge nothing is gained or lost; holds for scores relative to the label's, not for NCE."""
    data = make(rng, features, intercept=intercept)
    V, u = start(rng, intercept)
    order, C = draws(rng, data, 100)
    args = data, weights(V, u), order, C, schedule(100, length(solver), intercept=intercept)
    W, _ = finished(single_steps(*args, solver))
    if isinstance(solver, NCE) or getattr(solver, "alpha", 0.0) == 1.0:
        assert np.abs(W.sum(axis=0) - V.sum(axis=0)).max() > 1e-4
    else:
        np.testing.assert_allclose(W.sum(axis=0), V.sum(axis=0), atol=1e-10)


@pytest.mark.thorough
def test_two_halves_of_an_epoch_are_the_epoch(features, rng, x64):
    data, solver = make(rng, features), ImplicitSGD()
    V, u = start(rng)
    order, C = draws(rng, data, 60)
    whole = single_steps(data, weights(V, u), order, C, schedule(60, strength=0.1), solver)
    half = single_steps(data, weights(V, u), order, C, schedule(30, strength=0.1), solver)
    both = single_steps(data, half, order, C, schedule(60, strength=0.1, begin=30), solver)
    for a, b in zip(whole, both, strict=True):
        np.testing.assert_array_equal(a, b)
    merged = sampling.merge_scale(sampling.Weights(*map(jnp.array, whole)))
    np.testing.assert_array_equal(merged.scale, 1)
    np.testing.assert_allclose(finished(merged)[0], finished(whole)[0], rtol=1e-14)


@pytest.mark.thorough
def test_a_row_of_zeros_moves_only_its_auxiliary_variable(features, rng, x64):
    data = make(rng, features, intercept=False)
    V, u = start(rng, intercept=False)
    C = draws(rng, data, 1)[1]
    C = jnp.where(C == data.label[3], (C + 1) % K, C)
    args = data, weights(V, u), jnp.array([3], jnp.int32), C[:1]
    W, u_new = finished(single_steps(*args, schedule(1, intercept=False), ImplicitSGD()))
    np.testing.assert_array_equal(W, V)
    assert u_new[3] != u[3] and np.array_equal(np.delete(u_new, 3), np.delete(u, 3))


# ------------------------------------------------------------------------- minibatches


@pytest.mark.thorough(cases=1)
@every_solver
@every_layout
def test_averaged_steps_are_the_mean_of_single_ones(solver, layout, features, rng, x64):
    data = make(rng, features, layout)
    V, u = start(rng)
    order = jnp.asarray(rng.choice(N, 4, replace=False).astype(np.int32))
    C = sampling.distinct_negatives(jax.random.key(2), data.label[order][..., None], K, M)
    one = schedule(1, length(solver), 0.1)
    W, u_new = finished(take_steps(data, weights(V, u), order[None], C[None], one, sampling.averaged, solver))
    four = one._replace(tau=4 * TAU)  # of which the mean takes a quarter
    alone = [
        finished(single_steps(data, weights(V, u), order[j : j + 1], C[j : j + 1], four, solver)) for j in range(4)
    ]
    np.testing.assert_allclose(W, np.mean([a for a, _ in alone], axis=0), atol=1e-12)
    if not isinstance(solver, UMax) or solver.delta > 1:  # raises of UMax count in full
        np.testing.assert_allclose(u_new, np.mean([b for _, b in alone], axis=0), atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "solver",
    [SOLVERS["implicit"], pytest.param(SOLVERS["implicit, absolute"], marks=pytest.mark.slow)],
    ids=["relative", "absolute"],
)
@every_layout
def test_shared_implicit_steps_are_the_mean_of_single_ones(solver, layout, features, rng, x64):
    """With the same negatives, without a row's own label; some labels repeat, and some negatives are labels."""
    data = make(rng, features, layout)
    V, u = start(rng)
    order = rng.choice(N, 12, replace=False).astype(np.int32)
    C = np.array([5, 1, 3], np.int32)
    one, label = schedule(1, length(solver), 0.1), np.asarray(data.label)
    args = jnp.asarray(order)[None], jnp.asarray(C)[None], one, sampling.shared, solver
    W, u_new = finished(take_steps(data, weights(V, u), *args))
    alone = []
    for i in order:
        some = jnp.asarray(C[label[i] != C])[None]
        of_one = jnp.asarray([i]), some, one._replace(tau=12 * TAU), solver
        alone.append(finished(single_steps(data, weights(V, u), *of_one)))
    np.testing.assert_allclose(W, np.mean([a for a, _ in alone], axis=0), atol=1e-12)
    np.testing.assert_allclose(u_new, np.mean([b for _, b in alone], axis=0), atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("tile", [3, 100])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_changes_at_repeated_places_add_up_on_every_device(shape, tile, monkeypatch, rng, x64):
    monkeypatch.setattr(class_rows, "_TILE", tile)
    array, place = rng.normal(size=(6, *shape)), jnp.asarray([2, 5, 2, 0, 2, 5, 0])
    change = rng.normal(size=(7, *shape))
    wanted = array.copy()
    np.add.at(wanted, np.asarray(place), change)
    nothing = class_rows.add_all(jnp.asarray(array), place[:0], jnp.asarray(change[:0]))
    np.testing.assert_array_equal(nothing, array)
    for add in (class_rows.one_by_one, class_rows.summed_first, class_rows.add_all):
        np.testing.assert_allclose(jax.jit(add)(jnp.asarray(array), place, jnp.asarray(change)), wanted, atol=1e-14)


def test_one_list_of_distinct_classes_adds_what_two_lists_add(rng, x64):
    """Labels that repeat, that are shared classes, and that are both."""
    V, x, push, pull = (rng.normal(size=size) for size in ((9, 2), (6, 2), (6, 3), (6, 1)))
    shared, own = jnp.asarray([4, 0, 7]), jnp.asarray([2, 4, 2, 8, 4, 0])
    wanted = V.copy()
    for i, label in enumerate(np.asarray(own)):
        np.add.at(wanted, np.append(shared, label), np.append(push[i], pull[i])[:, None] * x[i])
    for add in (class_rows.one_list, class_rows.two_lists):
        np.testing.assert_allclose(jax.jit(add)(*map(jnp.asarray, (V, shared, own, push, pull, x))), wanted, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [UMax(3, 4), ImplicitSGD(3, 4, "shared")], ids=["umax", "implicit"])
def test_looking_up_all_steps_in_advance_gives_the_same_steps(solver, features, rng, x64):
    """With a ridge, whose scales are then also known in advance."""
    data, n_steps = make(rng, features), 5
    order = jnp.asarray(rng.permutation(len(data.label))[: 4 * n_steps].reshape(n_steps, 4).astype(np.int32))
    negatives = jnp.asarray(np.stack([rng.choice(K, 3, replace=False) for _ in range(n_steps)]).astype(np.int32))
    span = schedule(n_steps, 0.3, 0.1)
    args = data, order, negatives, sampling.measure(data, span, solver)
    ends = []
    for known in (None, n_steps):
        V, u = start(np.random.default_rng(3))
        at = sampling.take_steps(args[3], weights(V, u), order, negatives, span, sampling.shared, solver, known)
        ends.append([np.asarray(a) for a in at])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
    assert np.all(ends[0][2][:-1] != 1)  # the ridge has shrunk something


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [UMax(8, 16), ImplicitSGD(8, 16, "shared")], ids=["umax", "implicit"])
def test_a_gpu_takes_all_steps_of_a_portion_without_asking_the_host(solver):
    """One loop of a known length, and nothing in it that the host has to decide."""
    data, n_steps = make(np.random.default_rng(0), np.zeros((N, D)), dtype=np.float32), 6
    V, u = start(np.random.default_rng(1), dtype=np.float32)
    span = schedule(n_steps)._replace(ridge=np.zeros(D + 1, np.float32))
    order, negatives = jnp.zeros((n_steps, 16), jnp.int32), jnp.zeros((n_steps, 8), jnp.int32)
    args = sampling.measure(data, span, solver), weights(V, u), order, negatives, span, sampling.shared, solver
    traced = sampling.take_steps.trace(*args, n_steps)
    assert [e.params["length"] for e in equations(traced.jaxpr) if e.primitive.name == "scan"][:1] == [n_steps]
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.while") == 1  # that scan
    by_device = {v for e in equations(traced.jaxpr) if e.primitive.name == "platform_index" for v in e.outvars}
    conditions = [e.invars[0] for e in equations(traced.jaxpr) if e.primitive.name == "cond"]
    assert conditions and by_device.issuperset(conditions)  # chosen before it runs


@pytest.mark.slow
def test_averaged_proximal_steps_are_nonexpansive(features, rng, x64):
    """Identity 20: two starts never end farther apart, in the metric of the step."""
    data, solver = make(rng, features), ImplicitSGD()
    for c in (0.1, 10.0, 1000.0):
        order = jnp.asarray(rng.choice(N, 6, replace=False).astype(np.int32))
        C = sampling.distinct_negatives(jax.random.key(0), data.label[order][..., None], K, M)
        for _ in range(20):
            (V, u), (V2, u2) = start(rng), start(rng)
            V2, u2 = V + 0.3 * (V2 - V), u + 0.3 * (u2 - u)
            args = order[None], C[None], schedule(1, c), sampling.averaged, solver
            ends = [finished(take_steps(data, weights(*s), *args)) for s in ((V, u), (V2, u2))]
            (W, u_new), (W2, u2_new) = ends
            unit = c * np.asarray(data.weight) / (6 * TAU)  # of the auxiliary variables in the metric of the step
            before = np.sum((V - V2) ** 2) + np.sum(unit * (u - u2) ** 2)
            after = np.sum((W - W2) ** 2) + np.sum(unit * (u_new - u2_new) ** 2)
            assert after <= before * (1 + 1e-9)


@pytest.mark.thorough(cases=1)
@every_layout
@pytest.mark.parametrize("name", ["umax", "umax, one step for all", "gradient", "ove", "nce", "sampled softmax"])
def test_shared_steps_match_a_loop(name, layout, features, rng, x64):
    """Identity 11: repeated labels and negatives that are labels included; all exponentials use the old weights."""
    data, solver = make(rng, features, layout), SOLVERS[name]
    V, u = start(rng)
    steps, n = 5, 12
    order = np.stack([rng.choice(N, n, replace=False) for _ in range(steps)]).astype(np.int32)
    C = np.stack([rng.choice(K, M, replace=False) for _ in range(steps)]).astype(np.int32)
    c, strength = 4 * length(solver), 0.05
    args = data, weights(V, u), jnp.asarray(order), jnp.asarray(C), schedule(steps, c, strength)
    W, u_new = finished(take_steps(*args, sampling.shared, solver))

    x1 = np.column_stack([features, np.ones(N)])
    label, weight, offset = (np.asarray(a) for a in (data.label, data.weight, data.offset))
    hits = name in ("nce", "sampled softmax")
    for rows, negatives in zip(order, C, strict=True):
        new = V * (1 - c * strength * UNITS)
        for i in rows:
            s = V @ x1[i] + offset[i]
            chosen = [k for k in negatives if hits or k != label[i]]
            c_i = c * weight[i] / n
            tau = pace(solver, c_i)
            pushes, pull, after = pair_step(solver, c_i, LOG_A, s[chosen], s[label[i]], 0.0, u[i], tau)
            for k, push in zip(chosen, np.asarray(pushes), strict=True):
                new[k] -= push * x1[i]
            new[label[i]] += float(pull) * x1[i]
            if solver.auxiliary:
                u[i] = float(after)
        V = new
    np.testing.assert_allclose(W, V, atol=1e-11)
    np.testing.assert_allclose(u_new, u, atol=1e-11)


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("tau", [None, TAU])
def test_coupled_steps_agree_and_one_dual_sweep_is_a_sequence_of_single_steps(layout, tau, features, rng, x64):
    data = make(rng, features, layout)
    if tau is not None:  # whose steps are those of rows of a usual weight
        data = data._replace(weight=jnp.ones(N))
    V, u = start(rng)
    order = np.stack([rng.choice(N, 8, replace=False) for _ in range(3)]).astype(np.int32)
    C = np.stack([rng.choice(K, 4, replace=False) for _ in range(3)]).astype(np.int32)
    args = jnp.asarray(order), jnp.asarray(C)

    def fit(method, budget, strength=0.05):
        solver = ImplicitSGD(minibatch=method, sweeps=budget, auxiliary_step=tau)
        span = schedule(3, 4.0, strength)
        return finished(take_steps(data, weights(V, u), *args, span, sampling.coupled, solver))

    exact = fit("dual", 60)
    for method, budget in (("jacobi", 2000), ("newton", 30)):
        for a, b in zip(fit(method, budget), exact, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-8)

    W, u_new = fit("dual", 1, strength=0.0)
    single = weights(V, u)
    for rows, negatives in zip(order, C, strict=True):
        for i in rows:
            chosen = negatives[negatives != np.asarray(data.label)[i]].astype(np.int32)
            single = single_steps(
                data,
                single,
                jnp.array([i]),
                jnp.asarray(chosen)[None],
                schedule(1, 4.0 / 8),
                ImplicitSGD(auxiliary_step=tau),
            )
    W_loop, u_loop = finished(single)
    np.testing.assert_allclose(W, W_loop, atol=1e-12)
    np.testing.assert_allclose(u_new, u_loop, atol=1e-12)


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("strength", [0.0, 0.05])
def test_steps_over_all_classes_match_a_loop(layout, strength, features, rng, x64):
    data = make(rng, features, layout)
    V, u = start(rng)
    order, c = rng.choice(N, (6, 3), replace=False).astype(np.int32), 2.0
    args = data, weights(V, u), jnp.asarray(order), None, schedule(6, c, strength)
    W, _ = finished(take_steps(*args, sampling.all_classes, SoftmaxProx()))
    x1, d = np.column_stack([features, np.ones(N)]), 1 + c * strength * UNITS
    for rows in order:
        ends = []
        for i in rows:
            y, c_i = int(data.label[i]), c * float(data.weight[i])
            score = (V / d) @ x1[i] + np.asarray(data.offset)[i]
            push = np.asarray(implicit.softmax_prox(c_i, jnp.asarray(score), np.eye(K)[y], np.sum(x1[i] ** 2 / d)))
            ends.append(V / d + np.outer(c_i * np.eye(K)[y] - push, x1[i] / d))
        V = np.mean(ends, axis=0)
    np.testing.assert_allclose(W, V, atol=1e-11)


# ------------------------------------------------------------------------- draws


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("m", [1, 2, 4])
def test_negatives_are_distinct_uniform_and_never_the_label(m):
    label = jnp.repeat(jnp.arange(5, dtype=jnp.int32), 20_000)
    C = np.asarray(sampling.distinct_negatives(jax.random.key(1), label[:, None], 5, m))
    assert C.min() >= 0 and C.max() < 5 and np.all(C != np.asarray(label)[:, None])
    assert np.all(np.diff(np.sort(C, axis=1), axis=1) > 0)
    for y in range(5):
        mine = C[np.asarray(label) == y]
        expected = len(mine) / 4  # every other class, at every place
        for place in range(m):
            seen = np.delete(np.bincount(mine[:, place], minlength=5), y)
            assert np.all(np.abs(seen - expected) < 6 * np.sqrt(expected))


@pytest.mark.thorough
@pytest.mark.parametrize("m", [1, 2, 9, 10, 30])
def test_negatives_match_a_loop_that_removes_drawn_classes(m):
    """The m-th is drawn from what the others and the known ones leave; if few are left, all of them and more."""
    key, known = jax.random.key(3), np.array([[2, 5, 11], [0, 1, 30], [7, 8, 9]], np.int32)
    C = np.asarray(sampling.distinct_negatives(key, jnp.asarray(known), 31, m, 3))
    left = [[k for k in range(40) if k not in row] for row in known]  # 31 and above are not classes
    for j, one in enumerate(jax.random.split(key, m)):
        place = jax.random.randint(one, (3,), 0, 31 - 3 - j, jnp.int32)
        assert C[:, j].tolist() == [classes.pop(i) for classes, i in zip(left, place.tolist(), strict=True)]
    if m == 30:
        np.testing.assert_array_equal(C[:, 28:], [[31, 32]] * 3)


@pytest.mark.parametrize("shared", [True, False])
def test_the_program_of_a_draw_does_not_grow_with_the_number_of_negatives(shared):
    key, order = jax.random.key(0), jnp.zeros((8, 4), jnp.int32)
    data = make(np.random.default_rng(0), np.zeros((N, D)))

    def size(m):
        traced = class_sampler._draw.trace(key, data, order, 0, size=8, n_classes=1000, m=m, shared=shared, width=0)
        return sum(1 for _ in equations(traced.jaxpr))

    assert size(2) == size(16) == size(128)


@pytest.mark.thorough
def test_single_precision_survives_a_long_epoch_with_a_ridge(features, rng):
    data, solver = make(rng, features, dtype=np.float32), ImplicitSGD()
    V, u = start(rng, dtype=np.float32)
    order, C = draws(rng, data, 2000)
    W, u_new = finished(single_steps(data, weights(V, u), order, C, schedule(2000, strength=0.02), solver))
    assert np.all(np.isfinite(W)) and np.all(u_new >= 0)
    assert np.all(log1p_sum_exp(W @ np.ones(D + 1)) < 1e3)
