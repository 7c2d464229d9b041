"""Nested models of a population: subsets of the features x subsets of the blocks of rows x strengths, a neuron at once."""
