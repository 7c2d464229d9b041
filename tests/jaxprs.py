"""Equations of a program before it is compiled, including those of loops and branches."""

import jax


def equations(jaxpr):
    """Yield every equation of a jaxpr and of those inside it, each once however often it runs."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from equations(inner)


def _is_jaxpr(x):
    return hasattr(getattr(x, "jaxpr", x), "eqns")
