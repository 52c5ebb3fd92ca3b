"""Parts of the recipe that makes images: samples, their distances from real ones, baselines, pictures and answers."""
