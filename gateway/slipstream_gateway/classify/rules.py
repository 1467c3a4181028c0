"""The classifier by rules: words of the instruction, counts over the prompt; pure and bounded in time."""

from __future__ import annotations

from slipstream_gateway.classify.length import guess_length
from slipstream_gateway.classify.rare import guess_rare_share
from slipstream_gateway.classify.task import guess_task
from slipstream_gateway.classify.view import view
from slipstream_gateway.types import GenerationRequest, RequestProfile


class RuleClassifier:
    """Transparent rules; `evidence` of the profile names those that fired. It holds no state."""

    def classify(self, request: GenerationRequest) -> RequestProfile:
        """The profile of `request`. Never raises, whatever the prompt holds."""
        prompt = view(request)
        task = guess_task(prompt)
        json = request.structured_output or "json" in prompt.head or "json" in prompt.system or "json" in prompt.tail
        length = guess_length(request, prompt, task.task, json=json)
        rare = guess_rare_share(prompt, task.task, json=json)
        return RequestProfile(
            task=task.task,
            expected_output_tokens=length.tokens,
            rare_token_share=rare.share,
            structured_output=json,
            prompt_tokens=prompt.prompt_tokens,
            confidence=task.confidence,
            evidence=task.evidence + length.evidence + rare.evidence,
        )
