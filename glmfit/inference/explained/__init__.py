"""Contributions of groups of features to held-out predictions, and whether time series have as much by chance."""
