"""Exact fits of softmax models, whose classes a row couples."""

from .run import ClassRun

__all__ = ["ClassRun"]
