"""One run of `slipstream bench`: read requests, start servers, measure every mode, write results."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop
from slipstream_core.environment import secret
from slipstream_core.errors import CommandError, named_os_errors
from slipstream_core.manifest import SpeculationPolicy
from slipstream_core.manifest.model_pair import Metadata

from slipstream_tools.bench.cases import Prices, cases_of
from slipstream_tools.bench.client import BenchClient
from slipstream_tools.bench.manifests import BenchManifest, default_policy, dump, read_manifest
from slipstream_tools.bench.options import BenchOptions
from slipstream_tools.bench.policy import measured_policy
from slipstream_tools.bench.requests import BenchFile, BenchRequest, embedded_requests, is_embedded, read_requests
from slipstream_tools.bench.results import RESULTS_FILE, Header, Results, ResultsFile, Settings, read_results
from slipstream_tools.bench.runner import BenchJob, Runner
from slipstream_tools.bench.stack import running_stack
from slipstream_tools.bench.suites import OPEN_LOOP_PLACES, fetched
from slipstream_tools.bench.summarize import summarize
from slipstream_tools.bench.summary import Summary, Thresholds
from slipstream_tools.bench.terminal import Progress

_SHOWN_PROBLEMS = 10


class Session:
    """Reads its inputs once; then `measure`, and from the results `summary` and `policy`."""

    def __init__(self, options: BenchOptions) -> None:
        """Read requests and manifest. Raises `CommandError` or `ManifestError`."""
        self._options = options
        self._file = _load(options)
        self._requests = self._file.requests[: options.limit]
        model = options.model or _named(self._requests)
        self._manifest = None if options.url else read_manifest(options.manifest, model)
        if self._manifest is not None and options.suite is not None:
            places = max([*options.concurrency, *(OPEN_LOOP_PLACES for _ in options.arrivals)])
            self._manifest = fetched(self._manifest, places, options.dtype)
        self._check()
        with named_os_errors(f"--out {options.out}", exit_code=2):
            options.out.mkdir(parents=True, exist_ok=True)
        self.results_path = options.out / RESULTS_FILE

    def measure(self) -> Results:
        """Run the requests that the results file does not have yet, and return all of its rows.

        Raises:
            CommandError: the file has other settings, or the servers cannot be used.
        """
        options = self._options
        header = Header(settings=self._settings(), skipped_lines=len(self._file.problems))
        results = ResultsFile(self.results_path, header)
        try:
            for draft in options.drafts or (None,):
                self._measure_draft(draft, results)
        finally:
            results.close()
        return read_results(self.results_path)

    def summary(self, results: Results) -> Summary:
        return summarize(results, thresholds=self._thresholds(), prices=self._prices())

    def policy(self, results: Results) -> bytes:
        """The measured SpeculationPolicy as YAML."""
        settings = results.header.settings
        policy = measured_policy(
            self._base_policy(results),
            cases_of(results.rows),
            settings.modes,
            thresholds=self._thresholds(),
            prices=self._prices(),
            seed=settings.seed,
        )
        return dump([policy], whole=False)

    def _measure_draft(self, draft: str | None, results: ResultsFile) -> None:
        options = self._options
        model = options.model or (self._manifest.pair.spec.model if self._manifest else "")
        job = BenchJob(options=options, requests=self._requests, model=model, draft=draft)
        total = job.total(results.finished)
        if not total:
            return
        progress = Progress(total=total, stream=sys.stderr, label=draft or "")
        with _served(self._manifest, draft, options) as url:
            try:
                uvloop.run(_run(job, url, results, progress))
            finally:
                progress.close()

    def _settings(self) -> Settings:
        options = self._options
        files = [options.manifest, *([options.classifier] if options.classifier else [])]
        system = options.shown_url if options.url else ", ".join(_fingerprint(path) for path in files)
        same = ("drafts", "rounds", "warmup", "seed", "timeout_s", "model", "limit")
        return Settings(
            requests=self._file.source,
            digest=self._file.digest,
            concurrency=options.loads,
            system=system,
            modes=tuple(mode.name for mode in options.modes),
            **{name: getattr(options, name) for name in same},
        )

    def _check(self) -> None:
        """Refuse draft lengths beyond the pair's limit, and a price of one arm, before servers start."""
        if self._manifest is not None:
            pair = self._manifest.pair
            limit = pair.spec.max_draft_tokens
            for mode in self._options.modes:
                if (mode.draft_length or 0) > limit:
                    message = f"mode {mode.name}: ModelPair/{pair.metadata.name} has maxDraftTokens {limit}"
                    raise CommandError(message, exit_code=2)
        if self._options.price_speculative is not None and self._prices().plain is None:
            message = "--price-speculative needs the price of the plain arm: give --price, too"
            raise CommandError(message, exit_code=2)

    def _thresholds(self) -> Thresholds:
        """The policy's, unless the options say otherwise."""
        policy = self._manifest.policy if self._manifest else None
        success = (policy or default_policy(Metadata(name="pair"))).spec.success
        values = {
            name: getattr(success, name) if (given := getattr(self._options, name)) is None else given
            for name in ("p95_reduction", "quality_loss", "cost_increase")
        }
        return Thresholds(min_samples=self._options.min_samples, **values)

    def _prices(self) -> Prices:
        """The manifest's, unless the options say otherwise."""
        price, speculative = self._options.price, self._options.price_speculative
        known = self._manifest.prices if self._manifest else Prices()
        if price is not None:
            known = Prices(plain=price, speculative=price)
        return known if speculative is None else Prices(plain=known.plain, speculative=speculative)

    def _base_policy(self, results: Results) -> SpeculationPolicy:
        if self._manifest is not None:
            return self._manifest.policy or default_policy(self._manifest.pair.metadata)
        model = next((str(row.request.get("model")) for row in results.rows), "pair")
        return default_policy(Metadata(name=self._options.pair or _object_name(model)))


async def _run(job: BenchJob, url: str, results: ResultsFile, progress: Progress) -> None:
    name = job.options.api_key_env
    key = None if name is None else secret(name)
    if name is not None and key is None:
        raise CommandError(f"--api-key-env: the environment variable {name} is not set", exit_code=2)
    client = BenchClient(url, api_key=key, timeout_s=job.options.timeout_s)
    try:
        if not job.model and not all(request.body.get("model") for request in job.requests):
            models = await client.models()
            job = msgspec.structs.replace(job, model=models[0] if models else "")
        await Runner(job, client, results, lambda _: progress.advance()).run()
    finally:
        await client.close()


@contextmanager
def _served(manifest: BenchManifest | None, draft: str | None, options: BenchOptions) -> Iterator[str]:
    """The URL to measure: that of a running gateway, or of the embedded stack while the context lasts."""
    if manifest is None:
        yield options.url or ""
        return
    what = f" with the draft {draft}" if draft else ""
    print(f"slipstream: starting the stack of {manifest.path}{what} …", file=sys.stderr, flush=True)
    served, classifier = manifest.served(draft), options.classifier and options.classifier.resolve()
    with running_stack(served, load_timeout_s=options.load_timeout_s, classifier=classifier) as url:
        yield url


def _load(options: BenchOptions) -> BenchFile:
    """The requests; unusable lines are listed on stderr."""
    text = options.requests
    file = embedded_requests(text) if is_embedded(text) else read_requests(Path(text))
    for problem in file.problems[:_SHOWN_PROBLEMS]:
        print(f"slipstream: {file.source}: {problem}: skipped", file=sys.stderr)
    if len(file.problems) > _SHOWN_PROBLEMS:
        print(f"slipstream: {file.source}: {len(file.problems)} lines were skipped", file=sys.stderr)
    return file


def _named(requests: Sequence[BenchRequest]) -> str | None:
    """The model that all `requests` name; None where they name none or several."""
    given = [request.body.get("model") for request in requests]
    names = {name if isinstance(name, str) else "" for name in given}
    return (names.pop() or None) if len(names) == 1 else None


def _fingerprint(path: Path) -> str:
    """A file's name with a hash of its content."""
    with named_os_errors(f"{path}: cannot be read", exit_code=2):
        return f"{path.name}@{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _object_name(text: str) -> str:
    """`text` as the name of an object: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "pair"
