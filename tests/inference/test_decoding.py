"""Posteriors of chains of labels: sums over all sequences, and what they must reduce to."""

import itertools

import numpy as np
import pynapple as nap
import pytest

from glmfit import MultinomialGLM, SoftmaxGLM
from glmfit.inference import smooth_posterior

K = 3


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = np.argmax(X @ rng.normal(size=(2, K)) + [1.0, 0, 0] + rng.gumbel(size=(400, K)), axis=1)
    return SoftmaxGLM(regularizer_strength=1e-3).fit(X, y)


@pytest.fixture
def chain(rng):
    transition = rng.random((K, K)) + 0.1
    return rng.normal(size=(6, 2)), transition / transition.sum(axis=1, keepdims=True)


def by_enumeration(model, X, transition, initial=None, causal=False):
    """Sum the probabilities of all sequences of labels."""
    share = model.report_.class_totals / model.report_.class_totals.sum()
    likelihood = np.where(np.isnan(X).any(axis=1)[:, None], 1.0, model.predict_proba(X) / share)
    initial = share if initial is None else np.asarray(initial)
    posterior = np.zeros((len(X), K))
    for t in range(len(X)):
        n = t + 1 if causal else len(X)
        for labels in itertools.product(range(K), repeat=n):
            p = initial[labels[0]] * np.prod([transition[a, b] for a, b in itertools.pairwise(labels)])
            posterior[t, labels[t]] += p * np.prod([likelihood[s, k] for s, k in enumerate(labels)])
    return posterior / posterior.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("initial", [None, [0.2, 0.0, 0.8]])
def test_posteriors_match_the_sum_over_all_sequences(model, chain, causal, initial):
    X, transition = chain
    X[3, 1] = np.nan
    found = smooth_posterior(model, X, transition, causal=causal, initial=initial)
    np.testing.assert_allclose(found, by_enumeration(model, X, transition, initial, causal), rtol=1e-10)


def test_labels_without_memory_are_decoded_row_by_row(model, chain):
    X, _ = chain
    share = model.report_.class_totals / model.report_.class_totals.sum()
    found = smooth_posterior(model, X, np.tile(share, (K, 1)))
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=1e-10)


def test_epochs_are_decoded_separately(model, chain):
    X, transition = chain
    expected = np.concatenate([smooth_posterior(model, part, transition) for part in (X[:2], X[2:])])
    np.testing.assert_allclose(smooth_posterior(model, X, transition, epochs=[0, 2]), expected, rtol=1e-12)
    support = nap.IntervalSet(start=[0, 10], end=[5, 20])
    frame = nap.TsdFrame(t=[1, 2, 11, 12, 13, 14], d=X, time_support=support)
    found = smooth_posterior(model, frame, transition)
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    assert list(found.columns) == [0, 1, 2] and isinstance(found, nap.TsdFrame)


def test_long_and_certain_chains_stay_finite(model):
    """Evidence of thousands of nats, against transitions of 1e-300."""
    X = np.repeat([[300.0, 0.0], [-300.0, 0.0]], 500, axis=0)
    rare = np.where(np.eye(K, dtype=bool), 1 - 2e-300, 1e-300)
    for causal in (False, True):
        found = smooth_posterior(model, X, rare, causal=causal)
        assert np.isfinite(found).all() and found.sum(axis=1) == pytest.approx(np.ones(1000))
        assert np.argmax(found[0]) != np.argmax(found[-1])


def test_labels_that_the_fit_has_not_met_stay_impossible():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 2)), np.arange(60) % K
    unseen = SoftmaxGLM().fit(X, y, sample_weight=(y != 2).astype(float))
    found = smooth_posterior(unseen, X, np.full((K, K), 1 / K))
    assert np.all(found[:, 2] == 0) and np.isfinite(found).all()
    found = smooth_posterior(unseen, np.full((3, 2), np.nan), np.full((K, K), 1 / K))
    assert np.all(found[:, 2] == 0) and np.isfinite(found).all()


@pytest.mark.thorough
def test_a_label_that_never_changes_follows_all_of_the_evidence(model):
    """Evidence of many thousand nats for one label is outweighed by more for another."""
    p = model.predict_log_proba([[20.0, 0.0], [-20.0, 0.0]])
    share = np.log(model.report_.class_totals / model.report_.class_totals.sum())
    first, second = p - share
    X = np.repeat([[20.0, 0.0], [-20.0, 0.0]], [1000, 3000], axis=0)
    total = share + 1000 * first + 3000 * second
    found = smooth_posterior(model, X, np.eye(K))
    assert np.isfinite(found).all() and np.all(np.argmax(found, axis=1) == np.argmax(total))
    causal = smooth_posterior(model, X, np.eye(K), causal=True)
    assert np.argmax(causal[999]) == np.argmax(first) != np.argmax(total)
    np.testing.assert_allclose(causal[-1], found[-1], rtol=1e-8, atol=1e-12)


def test_invalid_arguments_are_refused(model, chain):
    X, transition = chain
    with pytest.raises(ValueError, match=r"transition has shape \(2, 2\); it must be \(3, 3\)"):
        smooth_posterior(model, X, np.eye(2))
    for wrong in (2 * transition, transition - [[2.0, -1, -1]] * 3, np.full((K, K), np.nan)):
        with pytest.raises(ValueError, match="transition must have probabilities, finite and >= 0, and its rows must"):
            smooth_posterior(model, X, wrong)
    with pytest.raises(ValueError, match="initial must have probabilities, finite and >= 0, and it must sum to 1"):
        smooth_posterior(model, X, transition, initial=[1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="epochs must be numbers of rows, from 0 to 5"):
        smooth_posterior(model, X, transition, epochs=[6])
    with pytest.raises(ValueError, match="epochs is given, but X has times"):
        smooth_posterior(model, nap.TsdFrame(t=np.arange(6), d=X), transition, epochs=[0])
    with pytest.raises(TypeError, match=r"model is a glmfit\.MultinomialGLM; .* a model of labels"):
        smooth_posterior(MultinomialGLM(), X, transition)
    certain = np.repeat([[3000.0, 0.0], [-3000.0, 0.0]], 2, axis=0)
    labels = np.argmax(model.predict_proba(certain), axis=1)
    assert labels[0] != labels[2]
    assert np.isfinite(smooth_posterior(model, certain, np.eye(K))).all()  # unlikely, but possible
    with pytest.raises(ValueError, match="row 1 has no possible label"):
        y = np.arange(60) % K
        some = SoftmaxGLM().fit(np.ones((60, 1)) * y[:, None], y, sample_weight=(y != 2).astype(float))
        smooth_posterior(some, [[0.0], [0.0]], np.roll(np.eye(K), 1, axis=1), initial=[0.0, 1.0, 0.0])
