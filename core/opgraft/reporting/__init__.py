"""The report on a model: what is claimed, what is declined and why, and what claiming more would change."""

from opgraft.reporting.coverage import Coverage, DeclineCount, OperatorCoverage, coverage_of
from opgraft.reporting.report import Report, report_of

__all__ = ["Coverage", "DeclineCount", "OperatorCoverage", "Report", "coverage_of", "report_of"]
