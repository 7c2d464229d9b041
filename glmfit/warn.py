"""Warnings that point at the user's own line."""

import sys
import warnings


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn on behalf of the first caller outside of the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "glmfit":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
