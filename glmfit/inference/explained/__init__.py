"""Contributions of groups of features to held-out predictions, and tests against chance for time series."""
