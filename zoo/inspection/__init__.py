"""Looking into models: what they cost and what they do."""

from zoo.inspection.count import Count, count, count_parameters

__all__ = ["Count", "count", "count_parameters"]
