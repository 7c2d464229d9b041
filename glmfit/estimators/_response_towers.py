"""Fitted towers on the host: what predictions, files and the canonical rotation need, in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class AffineMap(NamedTuple):
    """Map ``x W + c``; no c where every entity is its own feature."""

    weight: np.ndarray
    constant: np.ndarray | None


class HostTower(NamedTuple):
    """Affine maps with a tanh between each two.

    Attributes
    ----------
    maps : tuple of AffineMap
        The first takes features; its weight is a table (entity, column) where every entity is its own feature.
    """

    maps: tuple[AffineMap, ...]

    @classmethod
    def of(cls, tower) -> HostTower:
        """Copy a tower from the device."""

        def host(a):
            return None if a is None else np.asarray(a, np.float64)

        return cls(tuple(AffineMap(host(weight), host(constant)) for weight, constant in tower.affine_maps()))

    def embed(self, features: Any) -> np.ndarray:
        """Compute embeddings (entity, k) of features (entity, feature); None where every entity is its own."""
        out = None
        for weight, constant in self.maps:
            x = features if out is None else np.tanh(out)
            out = weight if x is None else np.asarray(x @ weight, np.float64)
            out = out if constant is None else out + constant
        return out

    def rotated(self, rotation: np.ndarray) -> HostTower:
        """Multiply the embeddings with a matrix (k, k)."""
        weight, constant = self.maps[-1]
        last = AffineMap(weight @ rotation, None if constant is None else constant @ rotation)
        return HostTower((*self.maps[:-1], last))

    def scaled(self, factor: float) -> HostTower:
        """Multiply the embeddings with a number."""
        weight, constant = self.maps[-1]
        last = AffineMap(factor * weight, None if constant is None else factor * constant)
        return HostTower((*self.maps[:-1], last))

    def to_file(self, prefix: str, arrays: dict) -> None:
        """Add its arrays, by name."""
        for i, pair in enumerate(self.maps):
            arrays.update({f"{prefix}.{i}.{key}": a for key, a in pair._asdict().items() if a is not None})

    @classmethod
    def from_file(cls, prefix: str, arrays: dict) -> HostTower:
        """Find what `to_file` added."""
        maps: list[AffineMap] = []
        while (weight := arrays.get(f"{prefix}.{len(maps)}.weight")) is not None:
            maps.append(AffineMap(weight, arrays.get(f"{prefix}.{len(maps)}.constant")))
        if not maps:
            raise KeyError(f"{prefix}.0.weight")
        return cls(tuple(maps))


def canonical_rotation(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Rotate embeddings so that models that are equal look equal.

    Inner products, and penalties of linear towers, are the same after any rotation of both sides; this one makes
    ``P'P + Q'Q`` diagonal, decreasing, with the entry of largest magnitude of every column of Q positive.

    Parameters
    ----------
    P, Q : numpy.ndarray
        Embeddings, (m, k) and (n, k).

    Returns
    -------
    numpy.ndarray
        Orthogonal, (k, k).
    """
    _, vectors = np.linalg.eigh(P.T @ P + Q.T @ Q)
    rotation = vectors[:, ::-1]
    turned = Q @ rotation
    most = np.take_along_axis(turned, np.argmax(np.abs(turned), axis=0)[None, :], axis=0)[0]
    return rotation * np.where(most < 0, -1.0, 1.0)
