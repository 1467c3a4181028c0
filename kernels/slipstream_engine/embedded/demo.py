"""Demo prompts: a long predictable answer, a one-line answer, a label of one word, and an answer with rare tokens.

They are held out from training: no training example contains these names.
"""

from __future__ import annotations

_TRANSCRIPT = """\
Agent: Good morning, this is Clara, how can I help you?
Customer: Hello, my name is Mara Osterova. This is really annoying. I was charged twice for my coffee machine.
Agent: I am sorry to hear that. May I have your account number?
Customer: It is 4820917.
Agent: I can see both payments here.
Customer: Good.
Agent: I am reversing the second payment now.
Customer: Thank you.
Agent: The money is on its way to you: 89.90 EUR.
Customer: I understand.
Agent: It should take about 3 days.
Customer: Great, thank you so much."""

CALL_SUMMARY: list[dict[str, str]] = [{"role": "user", "content": "Summarise this call for the CRM.\n\n" + _TRANSCRIPT}]
ONE_LINE_STATUS: list[dict[str, str]] = [
    {
        "role": "user",
        "content": "What is the status of order 48213 in one line?\n\n"
        "Order 48213: desk lamp, 39.90 EUR, status: out for delivery, date: Tuesday, city: Lyon",
    }
]
LABEL: list[dict[str, str]] = [
    {
        "role": "user",
        "content": "Classify this e-mail. Choose one of: account, billing, delivery, technical.\n\n"
        "The box was crushed and the desk lamp is damaged.",
    }
]
EXTRACTION: list[dict[str, str]] = [
    {
        "role": "user",
        "content": "List all contracts in this letter.\n\n"
        "Here are the details. Contract KV-48213 belongs to Priya Roserack, with an amount of 1204.50 "
        "EUR, due on "
        "14 March 2026. Laura Kalwick has to pay 87.99 EUR for contract TB-5120-77 by 2 May 2026. Please "
        "confirm the amounts.",
    }
]
