"""Newton's method in float64 on one neuron at a time: what ends the fits that a metric or single precision fails."""
