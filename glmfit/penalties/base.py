"""Penalties of single coefficients, and the formulas of all: a ridge plus norms, never of the intercept."""

from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from glmfit.numerics import Array, FeatureNeuron, PerFeature, PerNeuron, namespace

PROHIBITIVE = 1e30  # strength of coefficients that are to stay 0; finite, also in single precision


def as_strength(value: Any) -> Array:
    """Keep an array as it is; make a double precision NumPy array of a number."""
    return value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value, dtype=np.float64)


class Penalty(eqx.Module):
    """Penalty R(W) = sum_n R_n(w_n) on coefficients W (feature, neuron), one term per neuron.

    A penalty is a smooth ridge part, ``ridge_strength_n / 2 ||w_n||^2``, plus S, a sum of norms of blocks of
    coefficients, each times its strength; by default a block is a single coefficient. It is a pytree whose leaves are
    the strengths: a change of strength does not recompile.

    Attributes
    ----------
    strength : array, shape (), (neuron,) or (feature, neuron)
        Regularisation strength >= 0, shared, one per neuron or one per coefficient. The data term is a mean over
        time, so the strength does not scale with the length of the recording.
    ratio : float or array
        Share of the strength that the norms have; the ridge has the rest.
    name : str
        NeMoS's name of the penalty.
    smooth : bool
        Whether R is its ridge part, so that the objective has a Hessian.

    Notes
    -----
    Arguments of the formulas (coefficients, gradients and duals) are (feature, neuron). The formulas compute in their
    namespace and dtype, whatever the dtype of the strength, and never promote float32.
    """

    strength: Array = eqx.field(converter=as_strength)
    ratio: eqx.AbstractVar[Any]
    name: eqx.AbstractClassVar[str]
    smooth: eqx.AbstractClassVar[bool]

    __getattribute__ = object.__getattribute__  # Equinox makes a module of every method that is looked up: too slow

    @property
    def rotation_invariant(self) -> bool:
        """Whether R(QDW) = R(DW) for some diagonal D and every orthogonal Q: a solver may rotate features, D inside."""
        return self.units is not None

    @property
    def units(self) -> np.ndarray | None:
        """Scales (feature,) or () of the coefficients in which the penalty is a plain ridge, one number per neuron.

        The largest is 1. None if there are none: the penalty has kinks, weighs features differently for different
        neurons, or leaves some free.
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
        """Return which coefficients of a single neuron have no penalty, (feature,)."""
        return np.asarray(self.value(np.eye(n_features))) == 0

    def blocks(self, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the norms of S of a single neuron: the norm of each feature, -1 for none; the strength of each."""
        if self.smooth:
            return np.full(n_features, -1), np.zeros(0)
        return np.arange(n_features), np.broadcast_to(np.ravel(self.l1_strength), n_features)

    @property
    def l1_strength(self) -> Array:
        """Strength of the norms, ``strength ratio``."""
        return self.strength * self.ratio

    @property
    def ridge_strength(self) -> Array:
        """Strength of the smooth part ``ridge_strength / 2 ||w||^2``, ``strength (1 - ratio)``."""
        return self.strength * (1.0 - self.ratio)

    def without(self, excluded: np.ndarray) -> "Penalty":
        """Return the penalty that also keeps some coefficients at 0, bool (feature, neuron); it has kinks.

        The optimum is that of fits without these features, and a bound of the gap also bounds theirs: the strength of
        an excluded norm is above every gradient.
        """
        found = eqx.tree_at(lambda of: of.strength, self, np.where(excluded, PROHIBITIVE, np.asarray(self.strength)))
        if not isinstance(self.ratio, jax.Array | np.ndarray):
            return found
        return eqx.tree_at(lambda of: of.ratio, found, np.where(excluded, 1.0, np.asarray(self.ratio)))  # no ridge

    def norms(self, coef: FeatureNeuron) -> Array:
        """Compute the norms of S, (norm, neuron): one for every coefficient."""
        return abs(coef)

    def norm_strength(self, like: FeatureNeuron) -> Array:
        """Strength of every norm, in the namespace and dtype of an array; it broadcasts with `norms`."""
        return per_neuron(self.l1_strength, like)

    def spread(self, values: Array) -> Array:
        """Give every feature the value of its norm, (feature, neuron)."""
        return values

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Compute R_n(w_n) >= 0, ridge part included, (neuron,)."""
        ridge = (0.5 * per_neuron(self.ridge_strength, coef) * coef * coef).sum(axis=0)
        return ridge if self.smooth else ridge + (self.norm_strength(coef) * self.norms(coef)).sum(axis=0)

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
            function of w. It is constant inside a norm.

        Returns
        -------
        jax.Array, shape (feature, neuron)
            Minimiser in v, with exact zeros. JAX only.
        """
        coef = jnp.asarray(coef)
        if self.smooth:
            return coef
        step = jnp.asarray(step, dtype=coef.dtype)
        norm, threshold = self.norms(coef), self.norm_strength(coef) * (step[None, :] if step.ndim == 1 else step)
        if feature_scale is None:
            return self.spread(_kept(threshold, norm)) * coef
        threshold = self.spread(jnp.broadcast_to(threshold, norm.shape))
        threshold = threshold / jnp.asarray(feature_scale, dtype=coef.dtype)[:, None]
        return _kept(threshold, self.spread(norm)) * coef

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
        if self.smooth:
            return grad
        xp, strength, norm = namespace(coef, grad), self.norm_strength(grad), self.norms(coef)
        pull = strength / xp.where(norm == 0.0, 1.0, norm)
        parts = _kept(strength, self.norms(grad)), pull, norm == 0.0
        kept, pull, is_zero = (self.spread(part) for part in parts)
        return xp.where(is_zero, kept * grad, grad + pull * coef)

    def conjugate(self, dual: FeatureNeuron) -> PerNeuron:
        """Compute the convex conjugate ``R*(u) = max_w u'w - R(w)`` >= 0, (neuron,); inf outside of its domain."""
        xp, ridge = namespace(dual), per_neuron(self.ridge_strength, dual)
        excess = xp.maximum(self.norms(dual) - self.norm_strength(dual), 0.0)
        free = ridge == 0.0
        part = excess * excess / (2.0 * xp.where(free, 1.0, ridge))
        return xp.where(free & (excess != 0.0), float("inf"), xp.where(free, 0.0, part)).sum(axis=0)

    def shares(self, dual: FeatureNeuron) -> Array:
        """Compute the shares of a dual point u that may be kept, (share, neuron).

        The shares are in [0, 1], rounded down: the largest s for which ``R*(s u)`` is finite and, where they differ,
        the largest for which it is 0.
        """
        xp, limit, size = namespace(dual), self.norm_strength(dual), self.norms(dual)
        without_ridge = xp.where(per_neuron(self.ridge_strength, dual) > 0.0, 0.0, size)
        return xp.stack([_share_within(limit, some) for some in (without_ridge, size)])

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
            Strength; inf if no strength gives W = 0.
        """
        xp = namespace(grad_at_zero)
        if self.smooth:  # it shrinks but never selects
            return xp.full_like(grad_at_zero[0], float("inf"))
        of_one = eqx.tree_at(lambda penalty: penalty.strength, self, np.ones(())).norm_strength(grad_at_zero)
        free = of_one == 0.0
        return xp.where(free, 0.0, self.norms(grad_at_zero) / xp.where(free, 1.0, of_one)).max(axis=0)


class Ridge(Penalty):
    """Ridge, R(w) = strength / 2 ||w||_2^2: all of it smooth, so the proximal operator is the identity."""

    ratio: ClassVar[float] = 0.0
    name: ClassVar[str] = "Ridge"
    smooth: ClassVar[bool] = True

    def without(self, excluded: np.ndarray) -> "ElasticNet":
        """Return the elastic net of ratio 0 that also keeps some coefficients at 0; see `Penalty.without`."""
        strength = np.where(excluded, PROHIBITIVE, np.asarray(self.strength, np.float64))
        return ElasticNet(strength, np.where(excluded, 1.0, 0.0))


@final
class NoPenalty(Ridge):
    """No penalty, R = 0: maximum likelihood. The strength exists for uniformity and is 0."""

    strength: Array = eqx.field(default=0.0, converter=as_strength)
    name: ClassVar[str] = "UnRegularized"

    def value(self, coef: FeatureNeuron) -> PerNeuron:
        """Return 0 for each neuron, even if coefficients are not finite."""
        return namespace(coef).zeros_like(coef[0])


@final
class Lasso(Penalty):
    """Lasso, R(w) = strength ||w||_1: the elastic net of ratio 1."""

    ratio: ClassVar[float] = 1.0
    name: ClassVar[str] = "Lasso"
    smooth: ClassVar[bool] = False


@final
class ElasticNet(Penalty):
    """Elastic net, R(w) = strength ((1 - ratio) / 2 ||w||_2^2 + ratio ||w||_1), NeMoS's parametrisation.

    Attributes
    ----------
    ratio : array, shape (), (neuron,) or (feature, neuron)
        Share of the l1 part, 0 < ratio <= 1; 1 is the lasso. 0 is the ridge, for coefficients of `Ridge.without`.
    """

    ratio: Array = eqx.field(default=0.5, converter=as_strength)
    name: ClassVar[str] = "ElasticNet"
    smooth: ClassVar[bool] = False


def per_neuron(strength: Array | float, like: Array) -> Array:
    """Bring a strength to the namespace and dtype of `like`, ready to broadcast with (feature, neuron)."""
    strength = namespace(like).asarray(strength, dtype=like.dtype)
    return strength[None, :] if strength.ndim == 1 else strength


def _share_within(limit: Array, size: Array) -> Array:
    """Compute the largest s in [0, 1] with ``s size <= limit`` in every row, rounded down, (neuron,)."""
    xp = namespace(size)
    most = xp.where(size <= limit, 1.0, limit / xp.where(size > 0.0, size, 1.0))
    return most.min(axis=0) * (1.0 - 4.0 * float(np.finfo(size.dtype).eps))


def _kept(threshold: Array, norm: Array) -> Array:
    """Compute the share of a vector that remains after its norm is shrunk by the threshold."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - threshold / norm
    return namespace(norm).where(share > 0.0, share, 0.0)
