"""What every penalty provides: formulas in the coefficients only, never in the intercept."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import namespace
from glmfit.types import Array, FeatureNeuron, PerFeature, PerNeuron


def as_strength(value: Any) -> Array:
    """Keep an array as it is; make a double precision NumPy array of a number."""
    return value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value, dtype=np.float64)


class Penalty(eqx.Module):
    """Penalty R(W) = sum_n R_n(w_n) on coefficients W (feature, neuron), one term per neuron.

    A penalty is a smooth ridge part, ``ridge_strength_n / 2 ||w_n||^2``, plus a non-smooth part S that has a
    proximal operator. It is a pytree whose leaves are the strengths: another strength does not recompile.

    Attributes
    ----------
    strength : array, shape (), (neuron,) or (feature, neuron)
        Regularisation strength >= 0, shared, one per neuron or one per coefficient. The data term is a mean over
        time, so the strength does not scale with the length of the recording.
    name : str
        NeMoS's name of the penalty.
    smooth : bool
        Whether R is its ridge part, so that the objective has a Hessian.

    Notes
    -----
    Points of the formulas (coefficients, gradients and duals) are (feature, neuron); they compute in the namespace and
    dtype of these, whatever the dtype of the strength, and never promote float32.
    """

    strength: Array = eqx.field(converter=as_strength)
    name: eqx.AbstractClassVar[str]
    smooth: eqx.AbstractClassVar[bool]

    @property
    def rotation_invariant(self) -> bool:
        """Whether R(QDW) = R(DW) for some diagonal D and every orthogonal Q: a solver may rotate features, D inside."""
        return self.units is not None

    @property
    def units(self) -> np.ndarray | None:
        """Scales (feature,) or () of the coefficients in which the penalty is a plain ridge, one number per neuron.

        The largest is 1. None if there are none: the penalty has kinks, or weighs features one way for one neuron and
        another way for the next, or leaves some free.
        """
        if not self.smooth:
            return None
        if np.ndim(self.strength) < 2:
            return np.ones(())
        strength = np.asarray(self.strength, np.float64)
        largest = strength.max(axis=0, keepdims=True)
        if not largest.any():
            return np.ones(len(strength))
        of = strength[:, np.argmax(largest)] / largest.max()
        same = np.all(np.abs(strength - of[:, None] * largest) <= 1e-14 * largest) and np.all(of > 0)
        return np.sqrt(of) if same else None

    @property
    def penalises_all(self) -> bool:
        """Whether it grows without limit in every direction of the coefficients: then there is an optimum."""
        return bool(np.all(np.asarray(self.strength) > 0))

    def leaves_free(self, n_features: int) -> np.ndarray:
        """Which coefficients of a single neuron have no penalty, (feature,)."""
        return np.asarray(self.value(np.eye(n_features))) == 0

    def blocks(self, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Norms whose sum, each times its strength, is S of a single neuron.

        Returns
        -------
        labels : numpy.ndarray, shape (feature,)
            Index of the norm that a feature is in, -1 for none.
        strength : numpy.ndarray, shape (norm,)
        """
        return np.full(n_features, -1), np.zeros(0)

    @property
    @abc.abstractmethod
    def ridge_strength(self) -> Array:
        """Strength of the smooth part ``ridge_strength / 2 ||w||^2``; array of the shape of ``strength``."""

    @abc.abstractmethod
    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Compute R_n(w_n) >= 0, ridge part included, (neuron,)."""

    @abc.abstractmethod
    def prox(self, coef: FeatureNeuron, step: Array | float, feature_scale: PerFeature | None = None) -> jax.Array:
        """Apply the proximal operator of the non-smooth part: argmin_v ||v - coef||^2 / (2 step) + S(v).

        Parameters
        ----------
        coef : array, shape (feature, neuron)
            Point, in the coordinates of the solver.
        step : float or array, shape () or (neuron,), for l1 penalties also (feature, neuron)
            Step size, >= 0.
        feature_scale : array, shape (feature,), optional
            Scale > 0 of the coordinates: the coefficients are w_j = v_j / feature_scale_j, and S is a
            function of w. The group lasso needs it constant inside a group.

        Returns
        -------
        jax.Array, shape (feature, neuron)
            Minimiser in v, with exact zeros. JAX only.
        """

    @abc.abstractmethod
    def subgradient_residual(self, coef: FeatureNeuron, grad: FeatureNeuron) -> FeatureNeuron:
        """Compute the subgradient of smallest norm, grad + xi with xi in the subdifferential of S at the coefficients.

        It is 0 exactly when they are optimal, and replaces the gradient in bounds on the distance from the optimum.

        Parameters
        ----------
        coef : array, shape (feature, neuron)
            Coefficients. One counts as zero if it is exactly 0.
        grad : array, shape (feature, neuron)
            Gradient of the smooth part: data term plus ridge part.

        Returns
        -------
        array, shape (feature, neuron)
        """

    @abc.abstractmethod
    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Compute the convex conjugate ``R*(u) = max_w u'w - R(w)`` >= 0, (neuron,); inf outside of its domain."""

    @abc.abstractmethod
    def shares(self, dual: FeatureNeuron) -> Array:
        """Compute how far a dual point u may be kept, (share, neuron).

        The shares are in [0, 1], rounded down: the largest s for which ``R*(s u)`` is finite and, where they differ,
        the largest for which it is 0.
        """

    @abc.abstractmethod
    def maximal_strength(self, grad_at_zero: FeatureNeuron) -> PerNeuron:
        """Compute the smallest strength at which W = 0 is optimal: the upper end of a regularisation path.

        Parameters
        ----------
        grad_at_zero : array, shape (feature, neuron)
            Gradient of the data term at W = 0, with the intercept (and the coefficients that are not
            penalised) at their optimum there.

        Returns
        -------
        array, shape (neuron,)
            Strength; inf where no strength gives W = 0.
        """


def thresholds(strength: Array, step: Array | float, feature_scale: Array | None, coef: Array) -> jax.Array:
    """Compute strength * step / feature_scale, in a shape that broadcasts against coef."""
    step = jnp.asarray(step, dtype=coef.dtype)
    threshold = strength * (step[None, :] if step.ndim == 1 else step)
    if feature_scale is None:
        return threshold
    return threshold / jnp.asarray(feature_scale, dtype=coef.dtype)[:, None]


def per_neuron(strength: Array, like: Array) -> Array:
    """Bring a strength to the namespace and dtype of `like`, ready to broadcast with (feature, neuron)."""
    strength = namespace(like).asarray(strength, dtype=like.dtype)
    return strength[None, :] if strength.ndim == 1 else strength


def ridge_value(strength: Array, coef: Array) -> Array:
    """Compute strength / 2 ||w||^2 of each neuron; the strength is that of `per_neuron`."""
    return (0.5 * strength * coef * coef).sum(axis=0)


def ridge_conjugate(strength: Array, dual: Array) -> Array:
    """Compute ``||u||^2 / (2 strength)`` of each neuron, inf where u is not 0 and the strength is."""
    xp = namespace(dual)
    free = strength == 0.0
    part = dual * dual / (2.0 * xp.where(free, 1.0, strength))
    return xp.where(free & (dual != 0.0), float("inf"), xp.where(free, 0.0, part)).sum(axis=0)


def share_within(limit: Array, size: Array) -> Array:
    """Compute the largest s in [0, 1] with ``s size <= limit`` in every row, rounded down, (neuron,)."""
    xp = namespace(size)
    most = xp.where(size <= limit, 1.0, limit / xp.where(size > 0.0, size, 1.0))
    return most.min(axis=0) * (1.0 - 4.0 * float(np.finfo(size.dtype).eps))
