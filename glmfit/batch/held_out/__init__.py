"""Judgement on held-out rows: scores of models, and contributions of groups of features."""
