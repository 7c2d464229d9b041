"""Newton's method in float64 on one neuron at a time, for fits that a metric or single precision cannot finish."""
