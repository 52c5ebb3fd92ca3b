"""Looking into models: what they cost and what they do."""

from zoo.inspection.count import Count, count, count_parameters
from zoo.inspection.match import Match, Matched, match_model, solve

__all__ = ["Count", "Match", "Matched", "count", "count_parameters", "match_model", "solve"]
