"""Tests of validation: with real models in a real runtime where needed, else with tables."""
