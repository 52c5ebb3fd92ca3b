"""What the recipe of speech recognition is made of (recipes/whisper.py)."""
