"""Which of two drafts a request verifies: tokens copied from its own text, or the drafter's. V2 model runner.

The rule is that of the embedded engine (`draft_allocation.Chances`): the probability that a draft token is accepted
follows from two log-odds, one of its *kind* (the length of the match up to it, or its position in the drafter's draft)
and one of its request. The draft with more expected tokens is taken. Here it is computed for a whole batch, on the
device, and both drafts of a request are judged by the next tokens of its answer, whichever of them was verified.

All ranks of a server compute the same numbers, so sums are taken in a fixed order (no atomic additions).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

COPIED, DRAFTED = 0, 1
LONGEST_MATCH = 16
_SMALLEST_RATE, _REQUEST_RATE, _KEPT = 0.02, 0.1, 0.97
_HOPED_LOG_ODDS, _MOST_LOG_ODDS = 1.5, 6.0
_UNKNOWN = -1  # in place of a token that does not exist


class Copies(NamedTuple):
    """Tokens that follow an earlier occurrence of the last ones. `matched` is the length of the match, 0 if there is
    none: then `tokens` are arbitrary."""

    tokens: torch.Tensor  # (B, K) int64
    matched: torch.Tensor  # (B,) int64, at most LONGEST_MATCH


class DraftChoice:
    """What is known of the drafts of all requests, by their slots."""

    def __init__(self, slots: int, longest: int, device: torch.device) -> None:
        """`longest`: the longest draft, K."""
        self._known = torch.full((LONGEST_MATCH + 1 + longest,), _HOPED_LOG_ODDS, device=device)
        self._counts = torch.zeros_like(self._known)
        self._own = torch.zeros(slots, 2, device=device)
        self._drafts = torch.full((slots, 2, longest), _UNKNOWN, dtype=torch.int64, device=device)
        self._kinds = torch.zeros_like(self._drafts)
        self._position = torch.arange(longest, device=device)
        self._end = torch.zeros(slots, dtype=torch.int64, device=device)  # length of the text before the last drafts
        self.matched = torch.zeros(slots, dtype=torch.int64, device=device)
        """(slots,): the length of the match of the last draft if it was copied, 0 if the drafter made it, -1 if there
        was no draft: then its tokens are arbitrary."""

    def learn(self, slots: torch.Tensor, ends: torch.Tensor, sampled: torch.Tensor, tokens: torch.Tensor) -> None:
        """Judge the last drafts by the tokens of a step.

        Args:
            slots: (B,); the requests of the step.
            ends: (B,); the lengths of their texts after the step.
            sampled: (B,); the numbers of new tokens.
            tokens: (B, K); the new tokens, arbitrary beyond `sampled`.
        """
        follows = self._end[slots] == ends - sampled  # otherwise another request had the slot, or it paused
        is_new = (self._position < sampled[:, None]) & follows[:, None]
        drafts, kinds, own = self._drafts[slots], self._kinds[slots], self._own[slots]
        is_equal = (drafts == tokens[:, None]) & is_new[:, None]
        reached = is_equal.cumprod(-1).roll(1, -1)
        reached[..., 0] = 1
        judged = (reached * is_new[:, None] * (drafts != _UNKNOWN)).float()
        error = (is_equal.float() - self._chances(kinds, own)) * judged

        learned = torch.where(judged.any(-1), own + _REQUEST_RATE * error.sum(-1), own * _KEPT)
        self._own[slots] = torch.where(follows[:, None], _bounded(learned), 0.0)
        of_kind = kinds.flatten()[:, None] == torch.arange(len(self._known), device=kinds.device)
        counts = (of_kind * judged.flatten()[:, None]).sum(0)
        errors = (of_kind * error.flatten()[:, None]).sum(0)
        self._counts += counts
        rate = (counts * (2.0 / (1.0 + self._counts)).clamp(min=_SMALLEST_RATE)).clamp(max=2.0)
        self._known = _bounded(self._known + rate * errors / counts.clamp(min=1.0))

    def choose(
        self, slots: torch.Tensor, ends: torch.Tensor, copies: Copies, drafts: torch.Tensor | None, width: int
    ) -> torch.Tensor:
        """Choose a draft of `width` tokens for each request of a batch.

        Args:
            slots: (B,); its requests.
            ends: (B,); the lengths of their texts.
            drafts: (B, K); those of the drafter, arbitrary beyond `width`; None if it did not run.
        Returns:
            the draft tokens (B, K).
        """
        position = self._position.expand(len(slots), -1)
        copied = (copies.matched[:, None] + position).clamp(max=LONGEST_MATCH)
        kinds = torch.stack([copied, LONGEST_MATCH + 1 + position], 1)
        expected = self._chances(kinds, self._own[slots])[..., :width].cumprod(-1).sum(-1)
        has_match = copies.matched > 0
        offered = copies.tokens if drafts is None else drafts
        takes_copy = has_match & (expected[:, COPIED] > expected[:, DRAFTED]) if drafts is not None else has_match

        exists = position < width
        own = torch.where(exists & has_match[:, None], copies.tokens, _UNKNOWN)
        of_drafter = torch.where(exists & (drafts is not None), offered, _UNKNOWN)
        self._drafts[slots] = torch.stack([own, of_drafter], 1)
        self._kinds[slots], self._end[slots] = kinds, ends
        self.matched[slots] = torch.where(takes_copy, copies.matched, -1 if drafts is None else 0)
        return torch.where(takes_copy[:, None], copies.tokens, offered)

    def _chances(self, kinds: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The probability that each token is accepted if those before it are: (B, 2, K)."""
        return torch.sigmoid(_bounded(self._known[kinds] + own[..., None]))


def _bounded(log_odds: torch.Tensor) -> torch.Tensor:
    return log_odds.clamp(-_MOST_LOG_ODDS, _MOST_LOG_ODDS)
