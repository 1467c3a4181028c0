"""Training of small Llama-style drafts: `python -m slipstream_engine.draft_training`.

A draft is distilled from its target on answers that gateways have captured (`slipstream drafts train`). The embedded
pair is trained with the same model and the same loop.
"""
