"""What a policy lets gateways keep of requests and answers, to train drafts with. Off by default."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slipstream_core.manifest.base import LABEL_PATTERN, Share, Spec
from slipstream_core.manifest.naming import CLASS_PATTERN

MAX_PATTERN = 512
_Label = Annotated[str, Meta(pattern=LABEL_PATTERN, max_length=32)]


class CaptureClass(Spec, frozen=True, kw_only=True):
    """The share of one request class. `task/length` takes precedence over `task`."""

    name: Annotated[
        str, Meta(pattern=CLASS_PATTERN, max_length=64, description="A task, or task/length: summarization/long.")
    ]
    share: Annotated[Share, Meta(description="Share of the answers of the class that are kept.")]


class Redaction(Spec, frozen=True, kw_only=True):
    """A pattern that is replaced by its name."""

    name: Annotated[_Label, Meta(description="Name that takes the place of the text: [NAME].")]
    pattern: Annotated[
        str, Meta(min_length=1, max_length=MAX_PATTERN, description="Regular expression in Python's syntax.")
    ]


class Capture(Spec, frozen=True, kw_only=True):
    """Which answers are kept with their prompts. Nothing is kept by gateways without `--capture-store`."""

    share: Annotated[Share, Meta(description="Share of the answers that are kept, in classes without their own.")] = 0.0
    classes: Annotated[
        tuple[CaptureClass, ...], Meta(max_length=64, description="Shares of individual request classes.")
    ] = ()
    consent: Annotated[
        Literal["assumed", "required"],
        Meta(
            description="required: requests are kept only with the header x-slipstream-capture: allow; assumed: all "
            "but those with x-slipstream-capture: deny."
        ),
    ] = "assumed"
    exclude_keys: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...],
        Meta(max_length=256, description="Ids of API keys whose requests are never kept."),
    ] = ()
    redact: Annotated[
        tuple[Literal["card", "iban", "email", "phone", "secret", "ip"], ...],
        Meta(max_length=16, description="Known kinds of personal data and secrets that are replaced by their name."),
    ] = ("card", "iban", "email", "phone", "secret", "ip")
    patterns: Annotated[
        tuple[Redaction, ...], Meta(max_length=32, description="More patterns that are replaced by their name.")
    ] = ()
    words: Annotated[
        tuple[Annotated[str, Meta(min_length=2, max_length=64)], ...],
        Meta(max_length=1000, description="Words and names, in any case of letters, that are replaced by [word]."),
    ] = ()
    max_bytes_per_day: Annotated[
        int, Meta(ge=1, le=2**50, description="Maximum size of the pair's files of one day (UTC), in bytes.")
    ] = 1024**3
    max_key_share: Annotated[
        float,
        Meta(gt=0, le=1, description="Maximum share of maxBytesPerDay that the answers of one API key take."),
    ] = 0.25
    retention_days: Annotated[
        int, Meta(ge=1, le=3650, description="Days after which the pair's files are deleted.")
    ] = 30

    def share_of(self, request_class: str) -> float:
        """The share of the class `task/length`."""
        task, share = request_class.partition("/")[0], self.share
        for rule in self.classes:
            if rule.name == request_class:
                return rule.share
            if rule.name == task:
                share = rule.share
        return share
