"""vLLM's schedulers with a draft length per request.

Vocabulary. A request's *length* is its requested draft length, or the one set for it later, else the present one of
its class. The *limit* is the server's
upper bound. The *cap* is the smaller of the two, read once per step, at the start of `schedule`. Of an *adaptive*
request, a step verifies no more draft tokens than `draft_allocation` allocates to it.

Stock vLLM uses one number for all rows in three places, which are changed:

- drafts that wait for verification are truncated to the cap at the start of a step (`spec_token_ids`; asynchronous
  scheduling keeps placeholders there, which workers read as ragged lengths);
- the drafter proposes at most as many tokens as the longest cap of the batch (`num_spec_tokens_to_schedule`), if
  `drafters.may_shorten` allows it and no other rank must make the same passes;
- a new decode is not padded to 1 + num_speculative_tokens rows, which would count as drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from slipstream_vllm import compatibility, settings, watchdog
from slipstream_vllm.class_lengths import ClassLengths
from slipstream_vllm.counters import COPY, COUNTS_KEY, DRAFTER, ClassTotals, StepCounts
from slipstream_vllm.draft_allocation import DraftRows, kept
from slipstream_vllm.draft_length import (
    checked_length,
    requested_adaptive,
    requested_class,
    requested_length,
    requested_protection,
)
from slipstream_vllm.drafters import has_passes, may_shorten
from slipstream_vllm.engine_time import EngineTime, shares, timed
from slipstream_vllm.errors import UnsupportedServerError
from slipstream_vllm.request_id import client_id

LONG_MATCH = 4
"""A copy of a match of so many tokens, accepted in full, needs no drafter beside the next one."""


class DraftLengthScheduler(Scheduler):
    """vLLM's synchronous scheduler with a draft length per request."""

    slipstream_limit: int | None = None
    """Upper bound for every request from the next step on; None for no bound."""
    slipstream_idle = False
    """Whether the last scheduled step has no drafts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dynamic_sd_lookup: list[int] | None
        self._latched_limit: int = self.num_spec_tokens
        self._counts = StepCounts()
        self._classes = ClassLengths(settings.class_file(self.vllm_config), self.num_spec_tokens)
        self._time = EngineTime()
        self._begun_s = self._time.now_s()
        speculative_config = self.vllm_config.speculative_config
        v2 = self.vllm_config.use_v2_model_runner and settings.extends_v2()
        in_step = settings.ranks_in_step(self.vllm_config)
        self._may_shorten = speculative_config is not None and not in_step and may_shorten(speculative_config, v2=v2)
        self._has_passes = speculative_config is not None and has_passes(speculative_config)
        self._allocates = settings.allocates(self.vllm_config)
        self._draft_rows = DraftRows()
        self._verified_caps: dict[str, int] = {}
        self._matched: dict[str, int] = {}
        if self.num_spec_tokens and self.dynamic_sd_lookup is None:
            # A lookup table stops `schedule` from padding new decodes to 1 + num_speculative_tokens rows.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        watchdog.install_in_engine()

    def add_request(self, request: Any) -> None:
        params = request.sampling_params
        extra_args = params.extra_args if params is not None else None
        request.slipstream_length = requested_length(extra_args, self.num_spec_tokens)
        request.slipstream_adaptive = requested_adaptive(extra_args)
        request.slipstream_protected = requested_protection(extra_args)
        request.slipstream_log_odds = 0.0
        request.slipstream_copies = False
        request.slipstream_class = requested_class(extra_args)
        request.slipstream_engine_s = 0.0
        request.slipstream_totals = totals = self._counts.of(request.slipstream_class)
        totals.requests += 1
        totals.own_length = request.slipstream_length
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._begun_s = self._time.now_s()
        self._classes.begin_step(len(self.running))
        limit = self.slipstream_limit
        self._latched_limit = self.num_spec_tokens if limit is None else min(limit, self.num_spec_tokens)
        waiting = [min(len(request.spec_token_ids), self._cap(request)) for request in self.running]
        for request, length in zip(self.running, self._allocated(self.running, waiting), strict=True):
            if len(request.spec_token_ids) > length:
                # A new list, because asynchronous scheduling shares one list of placeholders between requests.
                request.spec_token_ids = request.spec_token_ids[:length]
        return super().schedule(*args, **kwargs)

    def _allocated(self, requests: Sequence[Any], lengths: list[int]) -> list[int]:
        """`lengths` of draft tokens, with those of adaptive requests reduced to what pays in one step."""
        adaptive = [request.slipstream_adaptive for request in requests]
        if not self._allocates or not any(map(all, zip(adaptive, lengths, strict=True))):
            return lengths
        log_odds = [request.slipstream_log_odds for request in requests]
        protected = [self._protected_class(request) for request in requests]
        fixed = [not choose for choose in adaptive]
        return self._draft_rows.lengths(list(map(range, lengths)), log_odds, fixed, protected=protected)

    @staticmethod
    def _protected_class(request: Any) -> str | None:
        return (request.slipstream_class or "") if request.slipstream_protected else None

    def _cap(self, request: Any) -> int:
        """Maximum number of this request's draft tokens to verify in this step."""
        length: int | None = request.slipstream_length
        if length is None:
            length, _ = self._classes.present(request.slipstream_class)
        return min(length, self._latched_limit)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        requests = [self.requests[req_id] for req_id in scheduler_output.num_scheduled_tokens]
        lengths = [self._cap(request) for request in requests]
        scheduler_output.slipstream_verified_caps = dict(
            zip(scheduler_output.num_scheduled_tokens, lengths, strict=True)
        )
        if self._has_passes:  # others draft at no cost, and only then show which requests have drafts
            lengths = self._allocated(requests, lengths)
        caps = dict(zip(scheduler_output.num_scheduled_tokens, lengths, strict=True))
        if self._may_shorten and caps:
            longest = max(caps.values())
            scheduler_output.num_spec_tokens_to_schedule = min(scheduler_output.num_spec_tokens_to_schedule, longest)
        scheduler_output.slipstream_caps = caps
        scheduler_output.slipstream_needs_drafter = not self._may_shorten or any(
            cap and not request.slipstream_copies for cap, request in zip(lengths, requests, strict=True)
        )
        scheduler_output.slipstream_begun_s = self._begun_s
        self.slipstream_idle = scheduler_output.num_spec_tokens_to_schedule == 0 or not any(caps.values())
        super()._update_after_schedule(scheduler_output)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        # Asynchronous scheduling has already started the next step, so the caps come from this step's output.
        self._verified_caps = scheduler_output.slipstream_verified_caps
        step_s = self._time.step_s(begun_s=scheduler_output.slipstream_begun_s)
        charged = self._charge(scheduler_output, step_s)
        self._learn(scheduler_output, model_runner_output, step_s)
        self._note_copies(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._time.updated(idle=not self.running)
        self._count_tokens(outputs, charged)
        self._attach_counts(outputs, charged)
        self._attach_step_counts(outputs)
        return outputs

    def _charge(self, scheduler_output: Any, step_s: float) -> dict[str, Any]:
        """Charge the step to its requests. Returns: the charged requests by id, including those that end with this
        step, without aborted ones."""
        charged = {}
        for req_id, engine_s in shares(scheduler_output.num_scheduled_tokens, step_s).items():
            if (request := self.requests.get(req_id)) is not None:
                request.slipstream_engine_s += engine_s
                request.slipstream_totals.engine_s += engine_s
                charged[req_id] = request
        return charged

    def _learn(self, scheduler_output: Any, model_runner_output: Any, step_s: float) -> None:
        """Learn what the rows cost, and which draft tokens were accepted. The tokens of prompts are rows, too: with
        hundreds of requests hardly any step is without a prompt."""
        drafted = scheduler_output.scheduled_spec_decode_tokens
        rows = scheduler_output.num_scheduled_tokens
        if rows:
            most = len(rows) + sum(scheduler_output.slipstream_verified_caps.values())
            self._draft_rows.note_step(len(rows), sum(rows.values()), step_s, most)
        sampled = model_runner_output.sampled_token_ids
        for req_id, index in model_runner_output.req_id_to_index.items():
            request = self.requests.get(req_id)
            if request is None or not sampled or not sampled[index]:
                continue
            count = len(drafted.get(req_id, ()))
            own = request.slipstream_log_odds
            request.slipstream_log_odds = (
                self._draft_rows.chances.learn(range(count), len(sampled[index]) - 1, own) if count else kept(own)
            )

    def _count_tokens(self, outputs: Any, charged: dict[str, Any]) -> None:
        """Count the tokens of each request in `charged` for its class."""
        for output in (output for of_client in outputs.values() for output in of_client.outputs):
            request = charged.get(output.request_id)
            if request is not None and output.new_token_ids:
                request.slipstream_totals.steps += 1
                request.slipstream_totals.tokens += len(output.new_token_ids)

    def _note_copies(self, scheduler_output: Any, model_runner_output: Any) -> None:
        """Note which drafts of this step were copies of the text, and which requests copy a long passage."""
        matched = getattr(model_runner_output, "slipstream_matched", None)
        if matched is None:
            return
        self._matched = dict(zip(model_runner_output.req_ids, matched.tolist(), strict=True))
        drafted, sampled = scheduler_output.scheduled_spec_decode_tokens, model_runner_output.sampled_token_ids
        for (req_id, length), tokens in zip(self._matched.items(), sampled, strict=True):
            if (request := self.requests.get(req_id)) is not None:
                count = len(drafted.get(req_id, ()))
                request.slipstream_copies = length >= LONG_MATCH and 0 < count < len(tokens)

    def _attach_counts(self, outputs: Any, charged: dict[str, Any]) -> None:
        """Attach the counts so far, with the engine time, to the last output of each request in `charged`, and to every
        output of a request with stop strings.

        vLLM attaches counts only to a request's last output. Stop strings are found outside the scheduler, where no
        output is marked as the last one.
        """
        for output in (output for of_client in outputs.values() for output in of_client.outputs):
            request = charged.get(output.request_id)
            if request is None or request.spec_decode_metrics is None:
                continue
            params = request.sampling_params
            if output.spec_decode_metrics is not None or (params is not None and params.stop):
                output.spec_decode_metrics = timed(request.spec_decode_metrics, request.slipstream_engine_s)

    def _attach_step_counts(self, outputs: Any) -> None:
        """Attach what this step counted to its statistics, which exist unless vLLM's are disabled."""
        for stats in (of_client.scheduler_stats for of_client in outputs.values()):
            if stats is not None:
                stats.kv_connector_stats = {**(stats.kv_connector_stats or {}), COUNTS_KEY: self._counts.take()}

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        if num_draft_tokens:
            request = self.requests[request_id]
            drafted = num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)
            self._classes.verified(request.slipstream_class, drafted, num_accepted_tokens)
            source = COPY if self._matched.get(request_id) else DRAFTER
            length = self._verified_caps[request_id]
            self._counts.add(request.slipstream_class, length, source, drafted, num_accepted_tokens)
        return super().make_spec_decoding_stats(
            spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id
        )

    # Control methods, called between two steps.

    def slipstream_set_limit(self, limit: int | None) -> None:
        """Set the upper bound for every request from the next step on; None removes it. Raises: `ValueError`."""
        self.slipstream_limit = None if limit is None else checked_length(limit, self.num_spec_tokens, "limit")

    def slipstream_set_length(self, request_id: str, length: int) -> int:
        """Set the draft length of one request, by its client's id. Returns: the number of changed sequences.

        Raises: `ValueError` for a length that the server cannot draft.
        """
        checked_length(length, self.num_spec_tokens, "draft_length")
        found = [request for internal, request in self.requests.items() if client_id(internal) == request_id]
        for request in found:
            request.slipstream_length = length
        return len(found)

    def slipstream_stop_drafting(self) -> int:
        """Set length 0 for all running and waiting sequences. Returns: their number."""
        for request in self.requests.values():
            request.slipstream_length = 0
        return len(self.requests)

    def slipstream_classes(self) -> dict[str, dict[str, Any]]:
        """The counts of each class, with its present draft length and the origin of that."""
        self._classes.refresh(len(self.running))
        totals = {**dict.fromkeys(self._classes.labels, ClassTotals()), **self._counts.totals}
        return {label: self._described(label, counts) for label, counts in totals.items()}

    def _described(self, label: str, counts: ClassTotals) -> dict[str, Any]:
        described = asdict(counts)
        length, origin = self._classes.present(label)
        if (own := described.pop("own_length")) is not None:
            length, origin = own, "request"
        if self.slipstream_limit is not None and self.slipstream_limit < length:
            length, origin = self.slipstream_limit, "limit"
        return {**described, "length": length, "origin": origin}


class AsyncDraftLengthScheduler(DraftLengthScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler with a draft length per request."""


def build_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:
    """The scheduler that the configuration needs. Raises: `UnsupportedServerError`."""
    from slipstream_vllm.plugin import is_registered

    if not is_registered():
        raise UnsupportedServerError(
            "slipstream-vllm's plugin is not loaded: add 'slipstream' to VLLM_PLUGINS, or unset VLLM_PLUGINS."
        )
    compatibility.check_configuration(vllm_config)
    chosen = AsyncDraftLengthScheduler if vllm_config.scheduler_config.async_scheduling else DraftLengthScheduler
    return chosen(vllm_config, *args, **kwargs)
