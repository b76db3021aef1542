"""Hostile inputs and faults that the program must survive: the names of the tests say which."""
