"""Recipes, findings and what is composed of them."""
