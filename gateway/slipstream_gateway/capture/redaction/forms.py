"""Finds secrets by the form in which they are written: key blocks, tokens, headers, addresses and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

Span = tuple[int, int]
KEY_BLOCKS = ("-----BEGIN", "PuTTY-User-Key-File")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d")
_KEY_END = re.compile(r"-----END[^\n]{0,60}?-----|Private-MAC:[^\n]{0,80}")
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?")
_SCHEME = re.compile(r"\b(?:bearer|basic|token|digest)[ \t]{1,4}(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_USER = re.compile(
    r"(?<![^\s;|&(])(?:-u|--user|--proxy-user|--basic)[ \t=]{1,3}[\"']?[^\s:\"']{1,200}:(?P<value>[^\s\"']+)"
)
# Each command with its own flag for a password: `-P` is a port for mysql, and `-p` for redis-cli.
_FLAGS = tuple(
    (
        words,
        re.compile(rf"\b(?:{'|'.join(words)})\w*(?=[ \t])[^\n]{{0,120}}?[ \t]{flag}[\"']?(?P<value>[^\s\"']{{4,}})"),
    )
    for flag, words in (
        (
            r"-p[ \t]?",
            (
                "sshpass",
                "az login",
                "hydra",
                "docker login",
                "podman login",
                "registry login",
                "mysql",
                "mariadb",
                "mongo",
                "psql",
            ),
        ),
        (r"-p[ \t]?", ("7z", "rar", "unrar")),
        (r"-P[ \t]?", ("zip", "unzip", "sqlcmd")),
        (r"-a[ \t]{1,3}", ("redis-cli",)),
        (r"-w[ \t]{1,3}", ("ldap",)),
    )
)
_PIPED = re.compile(
    r"\b(?:echo|printf)[ \t]+(?:-\w+[ \t]+)?(?P<quote>[\"']?)(?:[\w.-]{1,64}:(?=[^\n|]{0,120}\|[^\n|]{0,40}chpasswd))?"
    r"(?P<value>[^\n\"'|]{1,120}?)(?P=quote)[ \t]*\|[^\n|]{0,80}?"
    r"(?:sudo[ \t][^\n|]{0,20}-S|-?-stdin|chpasswd|--with-token|smbpasswd|cryptsetup|\bpasswd)\b"
)
_NET_USER = re.compile(r"\bnet[ \t]+user[ \t]+[^\s/]\S{0,63}[ \t]+(?P<value>[^\s/*]\S*)", re.IGNORECASE)
_FTP = re.compile(r"\bUSER \S{1,200}[^\n]{0,80}\n(?:[^\n]{0,200}\n){0,2}?[^\nA-Za-z]{0,4}PASS (?P<value>\S+)")
_PGPASS = re.compile(
    r"^[^\s:#/]{1,200}:(?:\d{3,5}|\*):[A-Za-z_*][^\s:]{0,64}:[A-Za-z_*][^\s:]{0,64}:(?P<value>\S+)$", re.MULTILINE
)
_IMAP = re.compile(r"\bLOGIN[ \t]+\S{1,200}[ \t]+(?P<value>[^\s(]\S{3,})[ \t]*$", re.MULTILINE)
_ONE_TIME = re.compile(r"(?<![\w.])(?:[A-Z]-)?(?P<value>\d{4,8}) is your [^\n.]{0,40}\bcode\b")
_LITERALS = re.compile(r"--from-literal[ \t=]{1,3}[\"']?[^\s=\"']{1,200}=(?P<value>[^\s\"']+)")
_COOKIE_FLAG = re.compile(r"(?<!\S)(?:-b|--cookie)[ \t=]{1,3}(?P<value>\"[^\"\n]+|'[^'\n]+|[^\s=]{1,80}=\S+)")
# Words of which a text with a match has one, and the pattern.
_COMMANDS = (
    *_FLAGS,
    (("-u", "--user", "--proxy-user", "--basic"), _USER),
    (("echo", "printf"), _PIPED),
    (("net", "NET", "Net"), _NET_USER),
    (("PASS ",), _FTP),
    (("LOGIN",), _IMAP),
    (("is your ",), _ONE_TIME),
    ((":",), _PGPASS),
    (("--from-literal",), _LITERALS),
    (("-b", "--cookie"), _COOKIE_FLAG),
)
_DSN = re.compile(r"(?<![\w.@:+-])[\w.+-]{1,64}:(?P<value>[^\s\"'`]{1,200}?)@(?:tcp|unix)\(")  # of Go's MySQL driver
_URL_WORD = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*+://[^\s\"'<>`]+")
_KIND = re.compile(r"kind[\"']?:[ \t]*[\"']?Secret\b")
_DATA = re.compile(r"^(?P<indent>[ \t]*)(?:data|stringData):[ \t]*$", re.MULTILINE)
_ENTRY = re.compile(r"(?P<indent>[ \t]*)[^\s:#][^:\n]{0,200}:[ \t]*(?P<value>[^\n]*)")
_PAIR = re.compile(r"(?<!\S)[\w.@+-]{1,64}:(?P<value>[^\s:/][^\s:]{5,})(?!\S)")
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_/.-])(?:[A-Za-z]{2,12}[-_](?:[0-9a-f]{32,64}|(?=[A-Z]*[0-9])[A-Z0-9]{24,64})"
    r"|[0-9a-f]{32}-[a-z]{2}[0-9]{1,2})(?![A-Za-z0-9])|https?://[^\s\"'<>]{0,200}?/(?:api/)?(?:webhooks?|hooks)/(?P<path>[^\s\"'<>]{16,})"
)
_WORD = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")
_PREFIX = re.compile(r"[a-z]{2,8}[-_]")
_RUN = re.compile(r"(?<![A-Za-z0-9+/_.=-])[A-Za-z0-9+/_.=-]{20,}+")


def key_blocks(text: str) -> Iterator[Span]:
    """Private keys, to their end, or to the end of the text."""
    at = 0
    while begin := _KEY_BEGIN.search(text, at):
        end = _KEY_END.search(text, begin.end())
        at = len(text) if end is None else end.end()
        yield begin.start(), at


def tokens(text: str) -> Iterator[Span]:
    """JSON Web Tokens, and the credentials after `Bearer`, `Basic` or `Token`."""
    yield from (match.span() for match in _JWT.finditer(text))
    yield from (match.span("value") for match in _SCHEME.finditer(text) if is_random(match["value"]))


def commands(text: str) -> Iterator[Span]:
    """Passwords and cookies in the arguments and the input of commands, and in lines of `.pgpass`."""
    for words, pattern in _COMMANDS:
        if any(word in text for word in words):  # a pattern takes several times as long as a search for its words
            yield from (match.span("value") for match in pattern.finditer(text))


def urls(text: str) -> Iterator[Span]:
    """User and password in URLs, and the password in the addresses of Go's MySQL driver."""
    yield from (match.span("value") for match in _DSN.finditer(text))
    for match in _URL_WORD.finditer(text):
        begin = text.index("://", match.start()) + 3
        end = text.rfind("@", begin, match.end())
        if end > begin and ":" in text[begin:end]:
            yield begin, end


def kubernetes(text: str) -> Iterator[Span]:
    """The values of Kubernetes Secrets, whatever their names."""
    if not _KIND.search(text):
        return
    for data in _DATA.finditer(text):
        at = data.end() + 1
        while (entry := _ENTRY.match(text, at)) and len(entry["indent"]) > len(data["indent"]):
            if entry["value"].strip():
                yield entry.span("value")
            at = entry.end() + 1


def pairs(text: str) -> Iterator[Span]:
    """Passwords of `user:password`, alone between spaces. For decoded texts."""
    return (match.span("value") for match in _PAIR.finditer(text))


def random_runs(text: str) -> Iterator[Span]:
    """Long runs that change between small letters, capitals and digits as no word does, or are numbers with a
    prefix."""
    yield from (match.span() for match in _RUN.finditer(text) if _is_key_like(match.group()))
    yield from (match.span() for match in _PREFIXED.finditer(text))


def is_random(text: str) -> bool:
    """Whether `text` changes between small letters, capitals and digits as no identifier does."""
    kinds = [(char.isdigit(), char.isupper()) for char in text if char.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len(set(kinds)) > 1 and changes >= len(kinds) / 5


def _is_key_like(text: str) -> bool:
    """No path, no number, and no name such as `V1beta2ResourceClaimSpec`, half of which is words. After a prefix
    like `sk-`, capitals are not needed."""
    if text.count("/") > 3 or text.count(".") > 2:
        return False
    longest = max(re.split(r"[/._=-]", text), key=len)
    kinds = {(char.isdigit(), char.isupper()) for char in longest if char.isalnum()}
    in_words = sum(map(len, _WORD.findall(longest)))
    needed = 1 if _PREFIX.match(text) else 2
    return len(longest) >= 16 and len(kinds) > needed and 2 * in_words < len(longest) and is_random(longest)
