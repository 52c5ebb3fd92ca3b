"""Measurements of speed, memory, start-up and trainer overhead, each a `python -m benchmarks.NAME`."""
