"""What stands behind `python -m zoo.run` and `python -m zoo`; nothing here imports torch or Lightning by itself."""
