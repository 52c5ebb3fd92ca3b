"""Parts of the recipe that learns from masked tokens: examples, losses, figures, baselines and the downstream task."""
