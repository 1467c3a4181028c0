"""Text to rows of a table in a few NumPy calls: runs of four bytes, words, and pairs of words.

In scripts without spaces between words, each pair of neighbouring characters counts as a word.

A rolling hash makes it fast: with prefix sums `c[i] = sum(value[byte j] * B**j for j < i)` modulo 2**32, the hash of
the bytes `i..j` is `(c[j] - c[i]) * B**-i`: one expression for all words of a text, and one for all its runs. All
arithmetic is modulo 2**32, so that the same text has the same rows in every process and on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Each kind has its own rows: in one space, the many runs would outweigh the words.
_RUN_BITS, _WORD_BITS = 15, 16
WORDS_FROM = 1 << _RUN_BITS
_PAIRS_FROM = WORDS_FROM + (1 << _WORD_BITS)
TABLE_ROWS = _PAIRS_FROM + (1 << _WORD_BITS)
MAX_BYTES = 2304  # 750 characters of three bytes
_RUN_BYTES = 4
RUN_WEIGHT = 0.7  # weight of a run relative to a word: runs are more numerous and less informative

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_MODULUS = 1 << 32
_BASE = 0x9E3779B1
_RUN_MIX, _WORD_MIX = 0x85EBCA6B, 0x9E6C63D1
_PAIR_MIX = np.uint32(0xC2B2AE35)
_TO_WORD, _WORD_TO_RUN = np.uint32(32 - _WORD_BITS), np.uint32(_WORD_BITS - _RUN_BITS)


class Features(NamedTuple):
    """`rows` are table rows: of so many `runs`, of the words, of the pairs; a row may occur more than once.

    Word `i` is the bytes `begins[i]` to `ends[i]` of the hashed text.
    """

    rows: Rows
    runs: int
    begins: Rows
    ends: Rows


def _powers(base: int, first: int = 1) -> Hashes:
    """`first` times the powers of `base`."""
    values = [first]
    for _ in range(MAX_BYTES):
        values.append(values[-1] * base % _MODULUS)
    return np.array(values, dtype=np.uint32)


def _byte_values() -> Hashes:
    """A number per byte. Capitals have the values of small letters; all digits are equal, because only their presence
    is informative."""
    values = [((byte + 1) * 0xCC9E2D51 + (byte * byte + 7) * 0x1B873593) % _MODULUS for byte in range(256)]
    for digit in b"123456789":
        values[digit] = values[ord("0")]
    for capital in range(ord("A"), ord("Z") + 1):
        values[capital] = values[capital + 32]
    return np.array(values, dtype=np.uint32)


_POWERS, _INVERSE = _powers(_BASE), pow(_BASE, -1, _MODULUS)
# Factors that shift a hash to the start of the text; one table per kind, so that a run and a word of the same letters
# differ.
_RUN_BACK, _WORD_BACK = _powers(_INVERSE, _RUN_MIX), _powers(_INVERSE, _WORD_MIX)
BYTE_VALUES = _byte_values()
# Typographic marks and ASCII ones in their place; otherwise they would be parts of words.
_PLAIN_MARKS = tuple(
    zip(
        "\u2019\u2018\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u2013\u2014\u2022\u00a0\u3000\u00bf\u00a1"
        "\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f\uff08\uff09",
        "''" + '"' * 7 + " " * 6 + "." + ",.,:;!?()",
        strict=True,
    )
)
# First bytes of characters in scripts without spaces, all of three bytes: Thai and Lao, then kana, CJK and Hangul.
# Korean has spaces, but its words end in particles.
_SOUTHERN_LEAD, _SOUTHERN_SECOND = 0xE0, (0xB8, 0xBB)
_IS_LEAD = bytes(byte == _SOUTHERN_LEAD or 0xE3 <= byte <= 0xED for byte in range(256))
_WIDE_BYTES = 3
# Bytes of other scripts are parts of words.
IN_WORD = bytes(byte >= 128 or chr(byte).isalnum() or chr(byte) in "'#+" for byte in range(256))


def encode(text: str) -> bytes:
    """UTF-8 of at most `MAX_BYTES` between two line breaks, for hashing; lone surrogates become question marks.

    Latin capitals stay: they have the values of small letters.
    """
    if not text.isascii():
        text = text.lower()
        for mark, plain in _PLAIN_MARKS:  # a tenth of the time of `translate`
            text = text.replace(mark, plain)
    return b"\n%b\n" % text.encode("utf-8", "replace")[: MAX_BYTES - 2]


def features(data: bytes) -> Features:
    """The rows of `data`, from `encode`; no word rows for text without words."""
    raw = np.frombuffer(data, np.uint8)
    values = BYTE_VALUES.take(raw)
    values *= _POWERS[: raw.size]
    sums = np.zeros(raw.size + 1, np.uint32)
    np.add.accumulate(values, out=sums[1:])
    edges = _word_edges(data, raw)
    begins, ends = edges[::2], edges[1::2]
    at = sums.take(edges)
    words = at[1::2] - at[::2]
    words *= _WORD_BACK.take(begins)
    runs, count = max(raw.size - _RUN_BYTES + 1, 0), words.size
    hashes = np.empty(runs + count + max(count - 1, 0), np.uint32)
    np.subtract(sums[_RUN_BYTES:], sums[:-_RUN_BYTES], out=hashes[:runs])
    hashes[:runs] *= _RUN_BACK[:runs]
    hashes[runs : runs + count] = words
    pairs = hashes[runs + count :]
    np.multiply(words[:-1], _PAIR_MIX, out=pairs)
    pairs += words[1:]
    hashes >>= _TO_WORD
    hashes[:runs] >>= _WORD_TO_RUN
    rows = hashes.astype(np.int64)
    rows[runs : runs + count] += WORDS_FROM
    rows[runs + count :] += _PAIRS_FROM
    return Features(rows, runs, begins, ends)


def _word_edges(data: bytes, raw: npt.NDArray[np.uint8]) -> Rows:
    """The first byte of each word of `data` and the byte after it, by turns, word after word; `raw` are its bytes."""
    inside = np.frombuffer(data.translate(IN_WORD), np.bool_)
    if not data.isascii():
        leads = _wide_leads(data, raw)
        if leads.size:
            return _with_pairs(inside.copy(), leads)
    edges: Rows = (inside[1:] != inside[:-1]).nonzero()[0]
    edges += 1
    return edges


def _with_pairs(inside: npt.NDArray[np.bool_], leads: Rows) -> Rows:
    """The edges of the words in `inside`, and of pairs of the characters that begin at `leads`; alone, a character is
    a word."""
    for byte in range(_WIDE_BYTES):
        inside[leads + byte] = False
    edges = (inside[1:] != inside[:-1]).nonzero()[0] + 1
    follows = np.zeros(leads.size + 1, np.bool_)
    np.equal(leads[1:] - leads[:-1], _WIDE_BYTES, out=follows[1:-1])
    ends = np.zeros(inside.size, np.int64)  # by the first byte of each word
    ends[edges[::2]] = edges[1::2]
    paired, alone = leads[follows[1:]], leads[~(follows[1:] | follows[:-1])]
    ends[paired] = paired + 2 * _WIDE_BYTES
    ends[alone] = alone + _WIDE_BYTES
    begins = ends.nonzero()[0]
    ordered = np.empty(2 * begins.size, np.int64)
    ordered[::2], ordered[1::2] = begins, ends[begins]
    return ordered


def _wide_leads(data: bytes, raw: npt.NDArray[np.uint8]) -> Rows:
    """The first bytes of whole characters in scripts without spaces."""
    found: Rows = np.frombuffer(data.translate(_IS_LEAD), np.bool_)[:-_WIDE_BYTES].nonzero()[0]
    if _SOUTHERN_LEAD in data:
        low, high = _SOUTHERN_SECOND
        second = raw[found + 1]
        found = found[(raw[found] != _SOUTHERN_LEAD) | ((second >= low) & (second <= high))]
    return found


def word_rows(found: Features) -> Rows:
    """The rows of the words alone, one per word in order."""
    return found.rows[found.runs : found.runs + found.begins.size]
