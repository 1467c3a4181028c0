"""Servers of revisions whose answers are good, or bad in one way."""

from __future__ import annotations

import json
import random
import string
import time
from collections.abc import Callable
from typing import Any

from tests.support.http_server import Asked, Reply

JSON = dict[str, Any]
PROSE = {"messages": [{"role": "user", "content": "Summarize the report on the harbour in a few sentences."}]}
SCHEMA = {
    "type": "object",
    "required": ["name", "berths"],
    "properties": {"name": {"type": "string"}, "berths": {"type": "integer"}},
}
STRUCTURED = {
    "messages": [{"role": "user", "content": "Extract the name and the berths of the harbour as JSON."}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA}},
}
TOOLS = {
    "messages": [{"role": "user", "content": "How high is the tide at noon?"}],
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "required": ["port"]}}}
        for name in ("get_tide", "get_berth")
    ],
}
_ENGLISH = (
    "The harbour was deepened twice in the last ten years, and larger ships can now enter at every tide.",
    "Most of the cargo is grain, which arrives by rail from the farms in the north of the country.",
    "A new crane has halved the time that a ship spends at the quay before it leaves again.",
    "The council expects that the number of passengers will double when the second terminal opens.",
    "Storms closed the entrance on eleven days, fewer than in any of the four years before.",
    "The report asks for more pilots, because ships often wait for one in the early morning.",
    "Costs rose by six per cent, mainly for fuel and for the repair of the northern breakwater.",
    "The workers agreed on longer shifts in summer, in exchange for three more days of leave.",
    "Dredging takes place only between October and March, so that fish can spawn undisturbed.",
    "Two of the old warehouses are to become flats, although the neighbours object to the noise.",
)
_OTHER_ENGLISH = (
    "Over the past decade two rounds of dredging have made the port accessible to bigger vessels at any tide.",
    "Grain makes up the bulk of what is shipped here; trains bring it from farms further north.",
    "Thanks to another crane, vessels are now turned around in about half the time they used to need.",
    "Once there is a second terminal, officials believe twice as many travellers will pass through.",
    "Bad weather shut the port on only eleven days, which is the best figure for five years.",
    "More pilots are needed, the authors say, since vessels are frequently kept waiting at dawn.",
    "Spending went up by six percent, chiefly owing to fuel prices and work on the north breakwater.",
    "Staff will work longer hours during the summer months and get three extra days off in return.",
    "To protect spawning fish, dredgers may operate only from autumn until the beginning of spring.",
    "Despite complaints about noise, a pair of disused warehouses will be converted into apartments.",
)
_GERMAN = (
    "Der Hafen wurde in den letzten zehn Jahren zweimal vertieft, und größere Schiffe können jederzeit einlaufen.",
    "Der größte Teil der Ladung ist Getreide, das mit der Bahn von den Höfen im Norden des Landes kommt.",
    "Ein neuer Kran hat die Zeit halbiert, die ein Schiff am Kai verbringt, bevor es wieder ausläuft.",
    "Der Rat erwartet, dass sich die Zahl der Reisenden verdoppelt, wenn das zweite Terminal öffnet.",
    "Stürme schlossen die Einfahrt an elf Tagen, weniger als in jedem der vier Jahre zuvor.",
    "Der Bericht verlangt mehr Lotsen, weil die Schiffe am frühen Morgen oft auf einen warten.",
    "Die Kosten stiegen um sechs Prozent, vor allem für Treibstoff und die Reparatur des Wellenbrechers.",
    "Gebaggert wird nur zwischen Oktober und März, damit die Fische ungestört laichen können.",
)
_REFUSAL = "I'm sorry, but I can't help with that request."


class Revision:
    """The server of one revision. `prose`, `structured` and `call` make the content of an answer by the luck of each;
    `finish_reason`, `engine_s` and `slow_s` (seconds) are those of its answers, a share `fails` of the requests
    gets status 500, and one that `crashes` cuts its answers off."""

    def __init__(self, seed: int = 0) -> None:
        self.luck = random.Random(seed)
        self.prose: Callable[[random.Random], str] = lambda luck: sentences(luck, _ENGLISH)
        self.structured: Callable[[random.Random], str] = harbour
        self.call: Callable[[random.Random], tuple[str, str]] = lambda luck: ("get_tide", '{"port": "north"}')
        self.finish_reason = "stop"
        self.fails, self.engine_s, self.slow_s, self.crashes = 0.0, 0.02, 0.004, False

    def answer(self, asked: Asked) -> Reply:
        if asked.method != "POST":
            return Reply(body=b'{"object": "list", "data": []}')
        if self.luck.random() < self.fails:
            return Reply(status=500, body=b"{}", headers={"content-type": "application/json"})
        time.sleep(self.slow_s)
        body = json.dumps(self._completion(json.loads(asked.body))).encode()
        length = {"content-length": str(len(body) + 10)} if self.crashes else {}
        return Reply(body=body, headers={"content-type": "application/json", **length})

    def _completion(self, request: JSON) -> JSON:
        message: JSON = {"role": "assistant", "content": ""}
        reason = self.finish_reason
        if "tools" in request:
            name, arguments = self.call(self.luck)
            function = {"name": name, "arguments": arguments}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": function}] if name else []
            message["content"] = "" if name else arguments
            tokens, reason = 12 * bool(name or arguments), "tool_calls" if name else reason
        else:
            make = self.structured if "response_format" in request else self.prose
            message["content"] = make(self.luck)
            tokens = round(1.3 * len(message["content"].split()))
        usage: JSON = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
        usage["slipstream"] = {"engine_seconds": self.engine_s * self.luck.uniform(0.8, 1.2)}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "acme",
            "choices": [choice],
            "usage": usage,
        }


def sentences(luck: random.Random, bank: tuple[str, ...]) -> str:
    return " ".join(luck.sample(bank, luck.randint(4, 7)))


def harbour(luck: random.Random) -> str:
    return json.dumps({"name": luck.choice(["North", "East"]), "berths": luck.randint(2, 30)})


def _garbage(luck: random.Random) -> str:
    return " ".join("".join(luck.choices(string.ascii_lowercase, k=luck.randint(2, 9))) for _ in range(90))


def _repeats(luck: random.Random) -> str:
    return " ".join([luck.choice(_ENGLISH)] * 5)


def bad(kind: str) -> Revision:
    """A revision that is bad in one way."""
    new = Revision(1)
    changes: dict[str, JSON] = {
        "garbage": {"prose": _garbage},
        "truncation": {"prose": lambda luck: sentences(luck, _ENGLISH)[:200], "finish_reason": "length"},
        "wrong language": {"prose": lambda luck: sentences(luck, _GERMAN)},
        "invalid JSON": {"structured": lambda luck: harbour(luck)[:-1]},
        "JSON beside the schema": {"structured": lambda luck: '{"harbour": "North", "berths": "two"}'},
        "refusals": {
            "prose": lambda luck: (
                f"{_REFUSAL} {sentences(luck, _ENGLISH)}" if luck.random() < 0.5 else sentences(luck, _ENGLISH)
            )
        },
        "repetition": {"prose": _repeats},
        "slower": {"slow_s": 0.6},  # beyond doubt on a busy machine, too
        "dearer": {"engine_s": 0.04},
        "errors": {"fails": 0.3},
        "crash": {"crashes": True},
        "empty": {"prose": lambda luck: "", "structured": lambda luck: "", "call": lambda luck: ("", "")},
        "wrong tool": {"call": lambda luck: ("get_berth", '{"port": "north"}')},
        "unknown tool": {"call": lambda luck: ("get_weather", '{"port": "north"}')},
    }
    for name, value in changes[kind].items():
        setattr(new, name, value)
    return new


def good(seed: int) -> Revision:
    """A revision as good as the serving one, in other words or with other luck."""
    new = Revision(100 + seed)
    bank = (_ENGLISH, _OTHER_ENGLISH, _ENGLISH + _OTHER_ENGLISH)[seed % 3]
    new.prose = lambda luck: ("Sure! " if seed % 2 else "") + sentences(luck, bank)
    if seed % 4 == 1:
        new.structured = lambda luck: json.dumps(json.loads(harbour(luck)), sort_keys=True)
    new.engine_s = 0.02 - 0.0005 * (seed % 5)
    return new
