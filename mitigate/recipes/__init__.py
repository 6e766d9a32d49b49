"""Recipes: their configuration, their runner and one module a task."""
