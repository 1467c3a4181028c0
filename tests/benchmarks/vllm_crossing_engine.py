"""The engine of `vllm_crossing`: runs in vLLM's own Python, and prints one line of JSON for each round."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

from slipstream_vllm.engine_time import EngineTime
from vllm import LLM, SamplingParams

Work = dict[str, Any]


def engine(work: Work) -> LLM:
    llm = LLM(
        model=work["target"],
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=work["streams"],
        block_size=32,
        num_gpu_blocks_override=400,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=False,
        scheduler_cls="slipstream_vllm.Scheduler",
        speculative_config={
            "method": "draft_model",
            "model": work["draft"],
            "num_speculative_tokens": work["length"],
        },
    )
    # The engine's choice learns by the clock of this benchmark.
    scheduler_of(llm)._time = EngineTime(time.process_time)
    return llm


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def fields(way: str, length: int) -> dict[str, Any]:
    """The fields of a request; a request of the class `threshold` has none of its own."""
    if way == "threshold":
        return {"slipstream_class": way}
    own = {"plain": 0, "half": length // 2}.get(way, length)
    return {"slipstream_draft_length": own, "slipstream_adaptive": int(way == "chosen")}


class Streams:
    """One round. A stream sends one request after the other until it has its tokens."""

    def __init__(self, llm: LLM, work: Work, prompts: list[list[int]], way: str) -> None:
        self._llm, self._work, self._prompts = llm, work, prompts
        self._fields = fields(way, work["length"])
        self._had = [0] * work["streams"]
        self._begun = 0
        self.answers: dict[str, list[int]] = {}
        self.steps: list[tuple[int, int, int, bool, float]] = []

    def run(self) -> None:
        apart = self._work["tokens"] // len(self._had)
        while self._begun < len(self._had) or self._llm.llm_engine.has_unfinished_requests():
            if self._begun < len(self._had) and self._tokens() >= apart * self._begun:
                self._begun += 1
                self._ask(self._begun - 1, 0)
            self._step()

    def _tokens(self) -> int:
        return sum(map(len, self.answers.values()))

    def _ask(self, stream: int, number: int) -> None:
        at = (stream + number * len(self._had)) % len(self._prompts)
        params = SamplingParams(temperature=0, max_tokens=self._work["tokens"], extra_args=self._fields)
        self._llm.llm_engine.add_request(f"{stream}-{number}", {"prompt_token_ids": self._prompts[at]}, params)

    def _step(self) -> None:
        scheduler, tokens = scheduler_of(self._llm), self._tokens()
        drafted = self._drafted()
        running = [*scheduler.waiting, *scheduler.running]
        prompts = any(request.num_computed_tokens < request.num_prompt_tokens for request in running)
        began_s = time.process_time()
        outputs = self._llm.llm_engine.step()
        cpu_s = time.process_time() - began_s
        for output in outputs:
            self.answers[output.request_id] = list(output.outputs[0].token_ids)
            if output.finished:
                self._finished(output.request_id)
        self.steps.append((len(running), self._tokens() - tokens, self._drafted() - drafted, prompts, cpu_s))

    def _finished(self, name: str) -> None:
        stream, number = map(int, name.split("-"))
        self._had[stream] += len(self.answers[name])
        if self._had[stream] < self._work["tokens"]:
            self._ask(stream, number + 1)

    def _drafted(self) -> int:
        return sum(totals.drafted for totals in scheduler_of(self._llm)._counts.totals.values())


def main() -> None:
    work: Work = json.loads(sys.argv[1])
    llm = engine(work)
    template = llm.get_tokenizer().apply_chat_template
    prompts = [template(chat, add_generation_prompt=True, return_dict=False) for chat in work["chats"]]
    for number in range(work["rounds"]):
        for way in work["ways"] if number % 2 == 0 else reversed(work["ways"]):
            streams = Streams(llm, work, prompts, way)
            streams.run()
            answers = hashlib.sha256(json.dumps(sorted(streams.answers.items())).encode()).hexdigest()
            print(json.dumps({"way": way, "steps": streams.steps, "answers": answers}), flush=True)


if __name__ == "__main__":
    main()
