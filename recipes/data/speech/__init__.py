"""Recorded and synthesised speech with its words."""
