"""Weights to and from other libraries, a file a family and library."""
