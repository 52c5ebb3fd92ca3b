"""What happens around the steps: random states, checkpoints, validation, logs and progress. An idea a file."""
