"""Draft sources, the choice among them, and the number of draft tokens that pays."""
