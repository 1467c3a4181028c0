"""Capture: a share of the answers is kept with its prompts, to train drafts with.

The gateway sends them over a pipe to a process of its own, which redacts them and writes Parquet files (`writer`), so
that no request waits for a pattern, a disk or a store. Only the writer and the tools import pyarrow.
"""
