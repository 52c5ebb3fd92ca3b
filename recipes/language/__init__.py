"""Parts of the causal language model's recipe (recipes/gpt.py): baselines, evaluation, pictures, answers."""
