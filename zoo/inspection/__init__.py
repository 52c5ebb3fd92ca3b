"""Looking into models: what they cost and what they do."""

from zoo.inspection.count import Count, count, count_parameters
from zoo.inspection.match import Match, solve

__all__ = ["Count", "Match", "count", "count_parameters", "solve"]
