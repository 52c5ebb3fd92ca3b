"""Suites: one file each, found by name (`benchmarks.suites.<name>`, whose `SUITE` is a `Suite`)."""
