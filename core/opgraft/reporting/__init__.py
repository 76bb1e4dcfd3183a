"""The op-coverage report: what is claimed of a model, what is declined, and why."""

from opgraft.reporting.coverage import Coverage, DeclineCount, OperatorCoverage, coverage_of

__all__ = ["Coverage", "DeclineCount", "OperatorCoverage", "coverage_of"]
