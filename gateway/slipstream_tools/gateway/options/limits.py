"""What one worker takes on, and how long it waits."""

from __future__ import annotations

import argparse

from slipstream_core.arguments import at_least_one, not_negative, seconds
from slipstream_core.settings import Deadlines, Limits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    limits, deadlines = Limits(), Deadlines()
    group = parser.add_argument_group("limits of one worker")
    for name, kind, default, text in (
        ("--max-body-bytes", at_least_one, limits.max_body_bytes, "largest request body"),
        ("--max-bodies-bytes", at_least_one, limits.max_bodies_bytes, "request bodies held at once; beyond it: 429"),
        ("--max-in-flight", at_least_one, limits.max_in_flight, "requests that run at once"),
        ("--max-queued", not_negative, limits.max_queued, "requests that wait for a place; beyond it: 429"),
        ("--queue-timeout", seconds, limits.queue_timeout_s, "longest wait for a place, in seconds"),
        ("--drain", seconds, limits.drain_s, "how long streams may finish after SIGTERM, in seconds"),
        ("--connect-timeout", seconds, deadlines.connect_s, "deadline to reach an upstream, in seconds"),
        ("--first-chunk-timeout", seconds, deadlines.first_chunk_s, "deadline of a stream's first chunk"),
        ("--chunk-timeout", seconds, deadlines.between_chunks_s, "deadline between two chunks"),
        ("--stall-timeout", seconds, deadlines.stall_s, "the same for streams that can go on at another server"),
        ("--resume-timeout", seconds, deadlines.resume_s, "how long a broken stream looks for a server to go on at"),
        ("--total-timeout", seconds, deadlines.total_s, "deadline of a whole request"),
    ):
        group.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} (%(default)s)")


def settings_of(args: argparse.Namespace) -> Limits:
    return Limits(
        max_body_bytes=args.max_body_bytes,
        max_bodies_bytes=args.max_bodies_bytes,
        max_in_flight=args.max_in_flight,
        max_queued=args.max_queued,
        queue_timeout_s=args.queue_timeout,
        drain_s=args.drain,
    )


def deadlines_of(args: argparse.Namespace) -> Deadlines:
    return Deadlines(
        connect_s=args.connect_timeout,
        first_chunk_s=args.first_chunk_timeout,
        between_chunks_s=args.chunk_timeout,
        stall_s=args.stall_timeout,
        resume_s=args.resume_timeout,
        total_s=args.total_timeout,
    )
