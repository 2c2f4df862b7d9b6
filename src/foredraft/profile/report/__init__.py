"""Reports of a profile: one summary in, a page, Markdown and JSON out. Computes nothing new."""

from foredraft.profile.report.load import check_summary, read_summary, summary_schema
from foredraft.profile.report.markdown import to_markdown
from foredraft.profile.report.page import to_page, write_page, write_report
from foredraft.profile.report.shape import Summary

__all__ = [
    "Summary",
    "check_summary",
    "read_summary",
    "summary_schema",
    "to_markdown",
    "to_page",
    "write_page",
    "write_report",
]
