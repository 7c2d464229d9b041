"""What each group of features explains on held-out data, and whether that is more than time series explain by chance."""
