"""Lengths that a request states for its answer, and lengths that it mentions for something else."""

from __future__ import annotations

import pytest
from slipstream_gateway.decide.classify.length import stated_length

MATERIAL = "The harbour had been closed for repairs since spring. Fishermen moved their boats to the next bay. " * 6


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("Write an essay about tea in 200 words.", 270, 270),
        ("A 300-word story about a lighthouse, please", 405, 405),
        ("Write a letter of about 150 words.", 202, 203),
        ("Explain photosynthesis. Length: 80 words", 108, 108),
        ("Summarise this in two sentences.", 50, 50),
        ("Give me three short bullets on the risks.", 72, 72),
        ("Describe the city. (250 words)", 337, 338),
        ("Condense it to 50 words", 67, 68),
        ("One-sentence summary, please: the ferry is late", 25, 25),
        ("Summary of the call, 4 sentences max", 50, 100),
        ("One-line status for order 4711, please.", 20, 20),
        ("Keep it under 120 words.", 81, 162),
        ("Reply in no more than 40 words.", 27, 54),
        ("Write a tweet with at most 280 characters.", 35, 70),
        ("Boil this down to one sentence.", 25, 25),
        ("Put what follows into three lines for the file.", 60, 60),
        ("Condense the following article into three bullet points.", 72, 72),
        ("Six lines about our new oven, please.", 120, 120),
        ("What did they agree on? Two sentences are enough.", 25, 50),
        ("Zwei Sätze reichen.", 28, 56),
        ("Fasse das in drei Sätzen zusammen.", 84, 84),
        ("Schreibe höchstens 100 Wörter über den Hafen.", 85, 170),
        ("Antworte mit genau 2 Zeilen.", 44, 44),
        ("Résume ce texte en deux phrases.", 56, 56),
        ("Écris une lettre en 100 mots.", 150, 150),
        ("Resume el texto en un párrafo.", 120, 120),
        ("Escribe un resumen en 50 palabras.", 75, 75),
        ("请用不超过200字总结。", 120, 240),
        ("100文字以内で要約してください。", 60, 120),
        ("Is the ferry late? Answer yes or no.", 1, 3),
        ("Reply with 'true' or 'false' only.", 1, 3),
        ("Does this caller threaten to leave? true/false", 1, 3),
        ("Is the text spam? Yes or no.", 1, 3),
        ("Antworte nur mit ja oder nein.", 1, 3),
        ("Réponds par oui ou non.", 1, 3),
        ("Responde con sí o no.", 1, 3),
        ("Pick billing, delivery or other. Label only.", 1, 3),
    ],
)
def test_a_length_of_the_answer_is_found(text: str, least: float, most: float) -> None:
    found = stated_length(text, "")
    assert found is not None
    assert found.least == pytest.approx(least, abs=1)
    assert found.most == pytest.approx(most, abs=1)
    assert stated_length(f"{MATERIAL}\n\n{text}", "") == found
    assert stated_length(f"{text}\n\n{MATERIAL}", "") == found
    assert stated_length("go on", text) == found


@pytest.mark.parametrize(
    "text",
    [
        "Write a story about a character who lives in a clock.",
        "Create a dialogue between two characters about the weather.",
        "Invent three characters for my novel.",
        "Format the list with 42 characters per line.",
        "Suggest taglines for a bakery, at most 6 words per tagline.",
        "Write bullets with up to 12 words each.",
        "Write ten yes or no questions about France.",
        "Explain why yes/no questions bias a survey.",
        "Are yes or no questions leading?",
        "Answer yes or no and explain your reasons.",
        "Write a function that checks a word and returns true or false.",
        "Four pages of the book were missing.",
        "Determine if the following two sentences are paraphrases of each other.",
        "Which word fits at the end of a line in a song?",
        "Our contract consists of 10 pages, can you check the second one?",
        "Read a file that has 3 lines and 20 words.",
        "Line 1\nLine 2\nLine 3",
        "The password needs 8 characters, why is mine refused?",
        "How can I add a class only if the value is an error?",
        "How many words do the 5 paragraphs have together?",
        "Split the address into three lines.",
        "Two sentences in this text contradict each other, which ones?",
        "Schreibe eine Geschichte über zwei Sätze, die sich streiten.",
        "Une phrase de trop a tout changé.",
        "Las dos páginas que faltan hablan de una palabra.",
        "这篇文章有几个字？",
        "And now a page from our almanac.",
        "",
    ],
)
def test_a_mention_is_no_length(text: str) -> None:
    assert stated_length(text, "") is None
    assert stated_length("go on", text) is None


def test_the_middle_of_a_text_is_material() -> None:
    assert stated_length(f"{MATERIAL} Write it in 200 words. {MATERIAL}", "") is None


def test_the_longest_of_several_lengths_counts() -> None:
    found = stated_length("In two sentences, then a 200-word story.", "Answer in one word.")
    assert found is not None
    assert found.most == pytest.approx(270)
