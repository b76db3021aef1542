"""Evolve: the best chimera of a base, found by trials.

space       what is searched: parameters with bounds, and the recipe of a choice
proposals   the next choice, by Optuna, from the trials so far
scoring     a trial is written, measured beside the base, and removed
objectives  what trials are worth
search      an evolution in the catalog: its trials, shared by processes, and its result
overview    an evolution as an entity
"""
