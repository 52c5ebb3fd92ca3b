"""Parts of the recipe that acts: an environment, rollouts, the arms beside the model, pictures and answers."""
