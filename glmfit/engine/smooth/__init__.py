"""Quadratic penalties with one strength per fit and term: Newton steps of all fits, each with its own Hessian."""
