"""Replaces personal data and secrets in texts by their kind: `[card]`, `[email]`, ….

`views` are forms of a text in which the finders look: without escapes, in plain digits, without markup. The other
modules find one sort of text each, in time that is linear in the length of a view. `redactor` puts them together.
"""
