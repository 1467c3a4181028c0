"""SQL over a given schema, and short Python functions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .entities import World
from .example import Example, compose, vary

_SYSTEM = (
    "You write [SQL|SQL queries] for [the reporting team|analysts].",
    "You are [a|a helpful] [coding assistant|data assistant].",
    "Answer with [code|SQL or Python code] only.",
)


@dataclass(frozen=True)
class Table:
    """A table with its key and a column each for states, numbers and dates."""

    name: str
    key: str
    state: str
    states: tuple[str, ...]
    number: str
    date: str
    group: str

    def ddl(self) -> str:
        return (
            f"CREATE TABLE {self.name} ({self.key} INTEGER PRIMARY KEY, {self.group} TEXT, {self.state} "
            "TEXT, "
            f"{self.number} REAL, {self.date} TEXT);"
        )


TABLES = (
    Table("orders", "order_id", "status", ("open", "shipped", "returned", "cancelled"),
           "amount", "created_at", "city"),
    Table("tickets", "ticket_id", "priority", ("low", "normal", "high"),
           "handling_minutes", "opened_on", "team"),
    Table("calls", "call_id", "outcome", ("resolved", "escalated", "open"),
           "duration_s", "started_at", "agent"),
    Table("invoices", "invoice_id", "state", ("paid", "overdue", "draft"), "total", "due_date", "customer"),
    Table("contracts", "contract_id", "status", ("active", "ended", "paused"),
           "monthly_fee", "end_date", "plan"),
    Table("returns", "return_id", "reason", ("damaged", "wrong_item", "late"),
           "refund", "received_on", "product"),
    Table("payments", "payment_id", "method", ("card", "transfer", "wallet"), "amount", "paid_on", "country"),
    Table("shipments", "shipment_id", "carrier", ("north", "express", "local"),
           "weight_kg", "sent_on", "depot"),
    Table("visits", "visit_id", "result", ("done", "missed", "moved"), "minutes", "visit_date", "technician"),
    Table("surveys", "survey_id", "channel", ("phone", "email", "chat"), "score", "answered_on", "agent"),
)  # fmt: skip

_SQL_INSTRUCTION = (
    "[Write|Give me|I need|Create|Please write] [a|an] [SQL query|SQL statement|query] [that|which] {what}."
)
_SHORT_SQL_INSTRUCTION = "[SQL|SQL query|Query], [please|]: [the query] {what}."


def _queries(table: Table, state: str, limit: str, day: str) -> tuple[tuple[str, str], ...]:
    """(description of the query, the query)"""
    name, number, group, date = table.name, table.number, table.group, table.date
    where = f"WHERE {table.state} = '{state}'"
    return (
        (f"[counts|returns the number of] {name} per {group}",
         f"SELECT {group}, COUNT(*) AS {name}_count\nFROM {name}\nGROUP BY {group}\nORDER BY "
         f"{name}_count DESC;"),
        (f"[counts|returns the number of] {name} with {table.state} {state}",
         f"SELECT COUNT(*) AS {name}_count\nFROM {name}\n{where};"),
        (f"[returns|shows|calculates] the [total|sum of] {number} per {group} [for|of] {name} with "
         f"{table.state} {state}",
         f"SELECT {group}, SUM({number}) AS total_{number}\nFROM {name}\n{where}\nGROUP BY {group}\n"
         f"ORDER BY total_{number} DESC;"),
        (f"[returns|shows|calculates] the [average|mean] {number} per {group}",
         f"SELECT {group}, AVG({number}) AS average_{number}\nFROM {name}\nGROUP BY {group}\n"
         f"ORDER BY average_{number} DESC;"),
        (f"[lists|returns|shows] the {limit} {name} with the [highest|largest] {number}",
         f"SELECT {table.key}, {group}, {number}\nFROM {name}\nORDER BY {number} DESC\nLIMIT {limit};"),
        (f"[lists|returns|shows] the {name} with {table.state} {state} since {day}, newest first",
         f"SELECT {table.key}, {group}, {number}, {date}\nFROM {name}\n{where} AND {date} >= '{day}'\n"
         f"ORDER BY {date} DESC;"),
        (f"[lists|returns|shows] every {group} with more than {limit} {name}",
         f"SELECT {group}, COUNT(*) AS {name}_count\nFROM {name}\nGROUP BY {group}\nHAVING COUNT(*) > "
         f"{limit}\n"
         f"ORDER BY {name}_count DESC;"),
    )  # fmt: skip


def make_sql(rng: random.Random, world: World) -> Example:
    table = rng.choice(TABLES)
    others = [other for other in TABLES if other.name != table.name]
    shown = [table, *rng.sample(others, k=rng.choice((0, 1, 1)))]
    rng.shuffle(shown)
    limit = str(rng.choice((3, 5, 10, 20, 25, 50, 100)))
    what, answer = rng.choice(_queries(table, rng.choice(table.states), limit, world.iso_date()))
    schema = "\n".join(shown_table.ddl() for shown_table in shown)
    form = _SQL_INSTRUCTION if rng.random() < 0.85 else _SHORT_SQL_INSTRUCTION
    return compose(
        rng, task="sql", instruction=vary(rng, form.replace("{what}", what)).replace("the query ", ""),
        material=vary(rng, "[|Schema:\n|Tables:\n]") + schema, answer=answer,
        system=vary(rng, rng.choice(_SYSTEM)), facts={"schema": schema, "sql": answer},
    )  # fmt: skip


def _functions(table: Table, state: str, limit: str) -> tuple[tuple[str, str, str], ...]:
    """(function name, description, body)"""
    items, number, group = table.name, table.number, table.group
    only = f'if row["{table.state}"] == "{state}"'
    return (
        (f"count_{state}_{items}", f"Return the number of {items} with {table.state} {state}.",
         f"    return sum(1 for row in {items} {only})"),
        (f"total_{number}", f"Return the sum of {number} over all {items} with {table.state} {state}.",
         f'    return sum(row["{number}"] for row in {items} {only})'),
        (f"average_{number}", f"Return the average {number} of all {items}, or 0.0 if there are none.",
         f'    if not {items}:\n        return 0.0\n    return sum(row["{number}"] for row in {items}) / '
         f'len({items})'),
        (f"{items}_by_{group}", f"Group the {items} by {group}.",
         f'    groups = {{}}\n    for row in {items}:\n        groups.setdefault(row["{group}"], '
         '[]).append(row)\n'
         f"    return groups"),
        (f"top_{items}", f"Return the {limit} {items} with the highest {number}.",
         f'    ranked = sorted({items}, key=lambda row: row["{number}"], reverse=True)\n    return '
         f'ranked[:{limit}]'),
        (f"{state}_{items}", f"Return the {items} with {table.state} {state}, newest first.",
         f'    selected = [row for row in {items} {only}]\n'
         f'    return sorted(selected, key=lambda row: row["{table.date}"], reverse=True)'),
    )  # fmt: skip


def make_python(rng: random.Random, world: World) -> Example:
    table = rng.choice(TABLES)
    name, doc, body = rng.choice(_functions(table, rng.choice(table.states), str(rng.randint(2, 20))))
    task = doc[0].lower() + doc[1:]
    instruction = vary(rng, rng.choice((
        f"[Write|I need|Please write] a [|short ]Python function {name}({table.name}): {task}",
        f"[Implement|Write] {name}({table.name}) in Python. It should {task}",
        f"Python function [please|needed]: {name}({table.name}). {doc}",
    )))  # fmt: skip
    fields = ", ".join((table.key, table.group, table.state, table.number, table.date))
    answer = f'def {name}({table.name}):\n    """{doc}"""\n{body}'
    return compose(
        rng, task="python", instruction=instruction,
        material=vary(rng, "[Each row is a dict with the keys|Every row is a dictionary with|The keys "
                           f"of a row are]: {fields}."),
        answer=answer, system=vary(rng, rng.choice(_SYSTEM)), facts={"name": name, "code": answer},
    )  # fmt: skip
