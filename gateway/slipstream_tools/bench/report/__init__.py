"""`report.html`: the comparison as one page that people can hand on. No network, no prompts, no answers."""

from slipstream_tools.bench.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
