"""What the recipes from one sequence to another share (recipes/t5.py, recipes/transformer.py)."""
