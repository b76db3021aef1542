"""Validation: real models in a real runtime where that is what is tested, and pure tables where it is not."""
