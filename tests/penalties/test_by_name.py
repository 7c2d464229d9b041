"""Penalties from the arguments of a user, and arguments that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glmfit.penalties import ElasticNet, GroupLasso, Lasso, NoPenalty, Ridge, make

NAMES = ["UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"]


def groups_of(name):
    return [0, 0, 1, 1] if name == "GroupLasso" else None


@pytest.mark.parametrize(
    "name, cls",
    [*zip(NAMES, [NoPenalty, Ridge, Lasso, ElasticNet, GroupLasso], strict=True), (None, NoPenalty)],
)
def test_names_select_the_class(name, cls):
    penalty = make(name, None if cls is NoPenalty else 0.2, 4, 2, groups=groups_of(name))
    assert type(penalty) is cls
    assert penalty.name == (name or "UnRegularized")
    assert penalty.strength == (0.0 if cls is NoPenalty else 0.2)


def test_a_strength_without_a_penalty_is_refused():
    with pytest.raises(ValueError, match="'UnRegularized', which has none"):
        make("UnRegularized", 0.2, 4, 2)
    assert make("UnRegularized", 0.0, 4, 2).strength == 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_strength_defaults_to_one_as_in_nemos(name):
    assert make(name, None, 4, 2, groups=groups_of(name)).strength == 1.0


def test_strength_per_neuron_and_dtype():
    penalty = make("Ridge", [0.1, 0.2], 4, 2, dtype=np.float32)
    assert penalty.strength.shape == (2,) and penalty.strength.dtype == np.float32
    assert make("Ridge", jnp.asarray(0.5), 4, 2).strength.dtype == np.float64
    assert make("Lasso", np.ones((4, 2)), 4, 2).strength.shape == (4, 2)
    assert make("GroupLasso", np.ones((3, 2)), 4, 2, groups=[0, 5, 2, -1]).strength.shape == (3, 2)


def test_elastic_net_ratio():
    assert make("ElasticNet", 0.1, 4, 2).ratio == 0.5
    penalty = make("ElasticNet", (0.1, 0.25), 4, 2)
    assert (penalty.strength, penalty.ratio) == (0.1, 0.25)
    np.testing.assert_allclose([penalty.l1_strength, penalty.ridge_strength], [0.025, 0.075])
    assert make("ElasticNet", (None, [0.2, 1.0]), 4, 2).ratio.shape == (2,)


@pytest.mark.parametrize(
    "groups, labels",
    [
        ([5, 5, 2, 2], (1, 1, 0, 0)),
        (np.array([0, -1, 1, 0]), (0, -1, 1, 0)),
        (["speed", "speed", "head", "speed"], (1, 1, 0, 1)),
        ({"a": [0, 2], "b": (3,)}, (0, -1, 0, 1)),
        ({"a": range(2), "b": np.array([2, 3])}, (0, 0, 1, 1)),
        ({"a": ["x", "z"], "b": "y"}, (0, 1, 0, -1)),
        ({"a": ["x", 1]}, (0, 0, -1, -1)),
        ({"a": slice(0, 2), "b": np.int64(3)}, (0, 0, -1, 1)),
        ({"a": slice(None, None, 2)}, (0, -1, 0, -1)),
    ],
)
def test_groups_become_labels(groups, labels):
    assert make("GroupLasso", 0.1, 4, 2, groups=groups, feature_names=["x", "y", "z", "t"]).groups == labels


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"regularizer": "ridge"}, ValueError, "'ridge'; allowed are 'UnRegularized', 'Ridge'"),
        ({"regularizer": Ridge(0.1)}, ValueError, "is Ridge.*; allowed are .* and None: pass a name"),
        ({"strength": -0.1}, ValueError, "-0.1; it must be finite and >= 0"),
        ({"strength": np.nan}, ValueError, "nan; it must be finite"),
        ({"strength": [0.1, np.inf]}, ValueError, "inf.*; it must be finite"),
        ({"strength": [0.1, 0.2, 0.3]}, ValueError, r"shape \(3,\); allowed are a number, one .* shape \(2,\)"),
        ({"strength": np.ones((2, 4))}, ValueError, r"shape \(2, 4\);.* per feature and neuron, shape \(4, 2\)"),
        ({"strength": "strong"}, ValueError, "'strong'; allowed are a number"),
        ({"strength": {"a": 1}}, ValueError, "allowed are a number"),
        ({"regularizer": "UnRegularized", "strength": -1}, ValueError, "finite and >= 0"),
        ({"regularizer": "ElasticNet", "strength": (0.1, 0.0)}, ValueError, r"0.0; it must be in \(0, 1\]"),
        ({"regularizer": "ElasticNet", "strength": (0.1, 1.5)}, ValueError, r"1.5; it must be in \(0, 1\]"),
        ({"regularizer": "ElasticNet", "strength": (0.1, np.nan)}, ValueError, r"must be in \(0, 1\]"),
        (
            {"regularizer": "ElasticNet", "strength": (1, 2, 3)},
            ValueError,
            r"tuple of 3; .* \(strength, ratio\)",
        ),
        (
            {"regularizer": "ElasticNet", "strength": (0.1, [0.5] * 3)},
            ValueError,
            r"ratio .* has shape \(3,\)",
        ),
        ({"groups": [0, 0, 1, 1]}, ValueError, "groups is given, but regularizer is 'Ridge'"),
        ({"regularizer": "GroupLasso"}, ValueError, "groups is None; pass groups as one label per feature"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    arguments = {"regularizer": "Ridge", "strength": 0.1, "n_features": 4, "n_neurons": 2} | arguments
    with pytest.raises(error, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    "groups, error, message",
    [
        ([0, 1], ValueError, r"shape \(2,\); it needs one label per feature, shape \(4,\)"),
        ([0.0, 1.0, 1.0, 0.0], ValueError, "dtype float64; labels must be integers"),
        ([True, False, True, False], ValueError, "dtype bool"),
        ([0, 1, -2, 0], ValueError, "label -2"),
        ([-1, -1, -1, -1], ValueError, "no feature into a group"),
        ({}, ValueError, "no feature into a group"),
        ({"a": []}, ValueError, "group 'a' is empty"),
        ({"a": [0, 4]}, ValueError, "feature index 4; X has 4 features, so allowed are 0 to 3"),
        ({"a": [-1]}, ValueError, "feature index -1"),
        ({"a": [0, 1], "b": [1]}, ValueError, r"feature 1 \('y'\) is in group 'a' and again in group 'b'"),
        ({"a": [0, "x"]}, ValueError, r"feature 0 \('x'\) is in group 'a' and again"),
        (
            {"a": ["speed"]},
            ValueError,
            r"names the feature 'speed', which does not exist; the features are \['x', 'y'",
        ),
        ({"a": [True, False]}, ValueError, r"member True \(bool\).*numpy.flatnonzero"),
        ({"a": [0.5]}, ValueError, r"member 0.5 \(float\)"),
        ({"a": 0.5}, ValueError, r"member 0.5 \(float\)"),
        ({"a": slice(4, 9)}, ValueError, "group 'a' is empty"),
        ({"a": slice("x", "z")}, ValueError, r"group 'a' is slice\('x', 'z', None\); a slice needs feature indices"),
        (
            [[0, 1], [2]],
            ValueError,
            "groups has 2 entries of different lengths; .*mapping from group names to features",
        ),
    ],
)
def test_invalid_groups_are_refused(groups, error, message):
    with pytest.raises(error, match=message):
        make("GroupLasso", 0.1, 4, 2, groups=groups, feature_names=["x", "y", "z", "t"])


def test_names_without_feature_names_are_refused():
    with pytest.raises(ValueError, match="X has no feature names: use indices"):
        make("GroupLasso", 0.1, 4, 2, groups={"a": ["speed"]})


def test_group_lasso_refuses_bad_groups_steps_and_scales():
    with pytest.raises(ValueError, match="at least one group"):
        GroupLasso(0.1, (-1, -1))
    with pytest.raises(ValueError, match="one integer per feature"):
        GroupLasso(0.1, (0, -3))
    penalty, coef = GroupLasso(0.1, (0, 0, 1, -1)), np.ones((4, 2), np.float32)
    scale = np.array([2.0, 2.0, 1.0, 9.0])  # arbitrary for unpenalised features
    with pytest.raises(ValueError, match=r"step has shape \(4, 2\)"):
        penalty.prox(coef, np.ones((4, 2)))
    with pytest.raises(ValueError, match="varies inside a group"):
        penalty.prox(coef, 1.0, np.array([1.0, 2.0, 1.0, 1.0]))
    np.testing.assert_array_equal(jax.jit(lambda v: penalty.prox(v, 1.0, scale))(coef)[3], 1.0)


def test_numbers_become_arrays():
    """A Python number would be static under equinox's jit, and every strength would compile again."""
    assert all(isinstance(p.strength, np.ndarray) for p in (Ridge(1), Lasso(0.1), ElasticNet(0.1), NoPenalty()))
    assert isinstance(ElasticNet(0.1, 0.3).ratio, np.ndarray)
