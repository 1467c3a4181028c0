"""`slipstream replay`: recorded requests of a bench, decided by other policies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError
from slipstream_gateway.decide.classify import LinearClassifier, default_model, load_model
from slipstream_gateway.decide.estimate import Learner

from slipstream_tools.bench.cases import Case, cases_of
from slipstream_tools.bench.formats import interval, percent
from slipstream_tools.bench.manifests import policy_route
from slipstream_tools.bench.replay import Replay, Replayer
from slipstream_tools.bench.results import Results, read_results
from slipstream_tools.bench.tables import columns


def run(args: argparse.Namespace) -> int:
    """Raises `CommandError` or `ManifestError` where a file cannot be used."""
    results = read_results(args.results)
    cases, modes = _cases(results, args.results, args.draft), results.header.settings.modes
    classifier = LinearClassifier(load_model(args.classifier) if args.classifier else default_model())
    replays = []
    for path in args.policy:
        route = policy_route(path, args.manifest, args.model)
        replayer = Replayer(route, classifier=classifier, learner=Learner(), seed=args.seed)
        replays.append(replayer.run(cases, modes))
    if not replays[0].requests:
        raise CommandError(f"{args.results}: no request has both a plain and a speculative answer", exit_code=2)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(replays)).decode())
    else:
        print("\n\n".join("\n".join(_lines(replay)) for replay in replays))
    return 0


def _cases(results: Results, path: Path, draft: str | None) -> list[Case]:
    """The cases with one draft: `draft`, or the only one that there is. Raises `CommandError`, which names `path`."""
    drafts = results.header.settings.drafts
    if draft not in (drafts or (None,)):
        known = f"it has: {', '.join(drafts)}" if drafts else "no drafts were compared in it"
        raise CommandError(f"{path}: --draft must name the draft whose answers are used; {known}", exit_code=2)
    return [case for case in cases_of(results.rows) if case.draft == draft]


def _lines(replay: Replay) -> Iterator[str]:
    yield f"policy {replay.policy}: {replay.requests} recorded requests"
    rows: list[Sequence[str]] = [("", "E2E mean ms", "saved s", "of the oracle's saving")]
    for one in replay.totals:
        saved = f"{one.saved_s:.2f}"
        rows.append((f"  {one.name}", f"{1000 * one.mean_e2e_s:.1f}", saved, percent(one.captured)))
    yield from columns(rows, text_columns=1)
    yield (
        f"of the oracle's saving: {percent(replay.captured_first)} in the first {replay.first_requests} requests, "
        f"{percent(replay.captured_warm)} after them"
    )
    if replay.worst_class is not None:
        slow = replay.worst_class.slow_down
        yield f"worst class {replay.worst_class.request_class}: {interval(slow, percent)} slower than plain"
    yield f"{replay.speculated} of {replay.requests} speculate"
    yield from (f"  {name}  {count}" for name, count in replay.reasons.items())
    if replay.refused:
        yield f"this gateway refuses {replay.refused} of the requests; they count as plain"
