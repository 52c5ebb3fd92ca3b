"""Parts that recipes over images share: classification metrics, baselines, pictures, answers for image files."""
