"""Generates a mixed contact-centre workload for `slipstream bench` with the embedded pair.

    python -m slipstream_engine.embedded.mixed --requests 600 --seed 1 [--bursts] > calls.jsonl

The output has one JSON object per line: `request` (an OpenAI chat body), `class` (the task), `reference` (the correct
answer), `check` (`label`, `json-schema`, `fields` or `contains`) and `at_s` (arrival time in seconds from the start).
The seed determines all of it. All examples are from the held-out split, which training never uses.

Origin of the shares: a contact centre's requests come from a dozen applications, each with one fixed prompt, and from
people who type. Every contact is documented (call summaries). Every message is classified (labels), and every e-mail
becomes a ticket (JSON). A third of the e-mails get a drafted reply. Order bots request one-line statuses, the back
office reads contracts, shifts write hand-over notes, and analysts generate code. In total, half of the requests have
long structured answers and a third have answers of one line or one word; the rest is rare tokens, free prose and code.
Applications that fill records decode greedily. Those that write to people sample at temperature 0.7 or, if none is set,
at OpenAI's default of 1. Each application sends one generous `max_tokens` for all its requests.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .corpus import DEFAULT_MIX, Example, Task, example
from .corpus.conversations import fill
from .corpus.reasons import LABELS
from .corpus.tickets import JSON_FIELDS

MODEL = "slipstream-embedded"
_HEADING = re.compile(r"^(?:Transcript|Call transcript|Message|Ticket|Orders|Records|Schema|Tables):\s")
_CALM_S, _BURST_S, _BURST_FACTOR = 60.0, 10.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Application:
    """An application with one fixed prompt and a `share` of all requests. The material follows the `instruction`.

    `instruction` may contain `{order}` or `{labels}`. None means that a person types it; "" means that the system
    prompt contains it.
    """

    name: str
    task: Task
    share: float
    system: str | None
    instruction: str | None
    temperature: float = 0.0
    max_tokens: int = 512


_APPLICATIONS = (
    Application(name="crm", task="summary", share=0.13, instruction="Summarise the following call for the CRM.",
                system="You are an assistant for call documentation. Answer only with the summary."),
    Application(name="quality", task="summary", share=0.05, system=None,
                instruction="Write a structured summary of this conversation for the case file."),
    Application(name="call-back", task="summary", share=0.03, temperature=0.7, instruction="",
                system="Turn this call into a call summary."),
    Application(name="mail-intake", task="json", share=0.10, instruction="",
                system="Extract the ticket fields from this e-mail as JSON."),
    Application(name="web-form", task="json", share=0.03, system="You process tickets for the support team.",
                instruction="Read the message and return a JSON object."),
    Application(name="reply-draft", task="reply", share=0.06, temperature=0.7,
                system="You are an assistant for a customer service team.",
                instruction="Draft a polite reply to this customer message."),
    Application(name="reply-standard", task="reply", share=0.03, system=None,
                instruction="Write a standard reply to this e-mail."),
    Application(name="mail-router", task="label", share=0.12, system="You handle e-mails for the service team.",
                instruction="Classify this e-mail. Choose one of: {labels}."),
    Application(name="chat-router", task="label", share=0.05, system=None,
                instruction="Which category fits this message? Answer with one word from: {labels}.", max_tokens=256),
    Application(name="order-bot", task="status", share=0.11,
                system="You work with the order data of an online shop.",
                instruction="What is the status of order {order} in one line?", max_tokens=256),
    Application(name="phone-menu", task="status", share=0.03, system=None,
                instruction="Where is my order {order}?", max_tokens=256),
    Application(name="contracts", task="extraction", share=0.07, instruction="",
                system="List all contracts in this letter."),
    Application(name="hand-over", task="notes", share=0.05, temperature=1.0, system=None,
                instruction="Write a short hand-over note for the next shift about this call."),
    Application(name="analysts-sql", task="sql", share=0.03, instruction=None,
                system="You write SQL queries for the reporting team."),
    Application(name="analysts-python", task="python", share=0.01, instruction=None,
                system="You are a coding assistant."),
)  # fmt: skip
# The rest is typed by people: any task, wording and layout, half of it in a chat window that sets no temperature.
_TYPED_SHARE = 1.0 - sum(application.share for application in _APPLICATIONS)
_TYPED_TEMPERATURES = (0.0, 0.7, 1.0, 1.0)


def mixed(requests: int, seed: int, *, rate: float = 1.0, bursts: bool = False) -> Iterator[dict[str, Any]]:
    """Yield `requests` rows, `rate` per second on average. With `bursts`, arrivals come in bursts."""
    arrivals = _arrivals(random.Random(f"mixed/arrivals/{seed}"), rate, bursts)
    for index, at_s in zip(range(requests), arrivals, strict=False):
        rng = random.Random(f"mixed/{seed}/{index}")
        shares = [application.share for application in _APPLICATIONS]
        application = rng.choices([*_APPLICATIONS, None], weights=[*shares, _TYPED_SHARE])[0]
        body, drawn = _typed(rng, seed, index) if application is None else _sent(application, seed, index)
        if body["temperature"] > 0:
            body["seed"] = rng.randrange(2**31)
        yield {
            "request": body, "class": drawn.task, "reference": drawn.answer, "check": _CHECKS[drawn.task](drawn),
            "at_s": round(at_s, 3),
        }  # fmt: skip


def _sent(application: Application, seed: int, index: int) -> tuple[dict[str, Any], Example]:
    """The body that an application sends, and the example of its material."""
    drawn = example(seed, index, "held_out", {application.task: 1.0})
    instruction = drawn.instruction
    if application.instruction is not None:
        slots = {"order": drawn.facts.get("order", ""), "labels": ", ".join(LABELS)}
        instruction = fill(application.instruction, slots)
    material = _HEADING.sub("", drawn.material)
    messages = [{"role": "user", "content": f"{instruction}\n\n{material}" if instruction else material}]
    if application.system:
        messages.insert(0, {"role": "system", "content": application.system})
    return _body(messages, application.max_tokens, application.temperature), drawn


def _typed(rng: random.Random, seed: int, index: int) -> tuple[dict[str, Any], Example]:
    drawn = example(seed, index, "held_out", DEFAULT_MIX)
    return _body(drawn.chat(), 512, rng.choice(_TYPED_TEMPERATURES)), drawn


def _body(messages: list[dict[str, str]], max_tokens: int, temperature: float) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": temperature}


def _arrivals(rng: random.Random, rate: float, bursts: bool) -> Iterator[float]:
    """Arrival times of a Poisson process, in seconds. With `bursts`, the process is Markov-modulated with the same mean
    rate: `_BURST_FACTOR` times faster for about ten seconds, about once a minute."""
    if not bursts:
        at_s = 0.0
        while True:
            at_s += rng.expovariate(rate)
            yield at_s
    calm_rate = rate * (_CALM_S + _BURST_S) / (_CALM_S + _BURST_S * _BURST_FACTOR)
    start, calm = 0.0, True
    while True:
        end = start + rng.expovariate(1.0 / (_CALM_S if calm else _BURST_S))
        at_s = start + rng.expovariate(calm_rate if calm else calm_rate * _BURST_FACTOR)
        while at_s < end:
            yield at_s
            at_s += rng.expovariate(calm_rate if calm else calm_rate * _BURST_FACTOR)
        start, calm = end, not calm


def _contains(*names: str) -> Callable[[Example], dict[str, Any]]:
    return lambda drawn: {"contains": [drawn.facts[name] for name in names]}


def _answer(drawn: Example) -> dict[str, Any]:
    return {"contains": [drawn.answer]}


def _ticket(drawn: Example) -> dict[str, Any]:
    record = json.loads(drawn.answer)
    schema = {"type": "object", "required": list(JSON_FIELDS)}
    return {"json-schema": schema, "fields": {name: record[name] for name in drawn.facts}}


_CHECKS: Mapping[Task, Callable[[Example], dict[str, Any]]] = {
    "summary": lambda drawn: {"contains": [
        f"Reason for contact: {drawn.facts['reason']}",
        f"Customer: {drawn.facts['customer']}, account {drawn.facts['account']}",
    ]},
    "json": _ticket,
    "reply": lambda drawn: {"contains": [f"Dear {drawn.facts['customer']},", drawn.facts["reason_sentence"],
                                         f"order {drawn.facts['order']}."]},
    "sql": _answer, "python": _answer, "status": _contains("line"),
    "label": lambda drawn: {"label": drawn.answer},
    "extraction": lambda drawn: {"contains": drawn.facts["values"].split("|")},
    "notes": _contains("account", "customer", "topic"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m slipstream_engine.embedded.mixed",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--requests", type=_positive(int), default=600, metavar="N", help="default: 600")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--rate", type=_positive(float), default=1.0, help="mean arrivals per second (default: 1)")
    parser.add_argument("--bursts", action="store_true", help="arrivals in bursts")
    args = parser.parse_args()
    for row in mixed(args.requests, args.seed, rate=args.rate, bursts=args.bursts):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return parse


if __name__ == "__main__":
    main()
