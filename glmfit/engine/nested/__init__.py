"""Nested models of a population: subsets of the features x sets of blocks of rows x strengths, neuron by neuron."""
