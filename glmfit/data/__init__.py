"""Validation of user input: all data are checked here, and errors say what to do."""
