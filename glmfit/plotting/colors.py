"""Colors of the drawings, those of Okabe and Ito."""

BLUE, RED, GREEN, ORANGE, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7"
BLACK, GREY, LIGHT = "#222222", "#7F7F7F", "#C8C8C8"
CYCLE = (BLUE, RED, GREEN, ORANGE, PURPLE, BLACK, GREY, LIGHT)


def colors_of_models(n):
    """Return colors of models to compare; the last is drawn strongest."""
    return [*((ORANGE, GREEN, PURPLE, RED) * n)[: n - 1], BLUE]
