"""Training of drafts: `python -m slipstream_training` trains small Llama-style models and EAGLE heads on answers.

The answers are those that gateways have captured (`slipstream drafts train`), or those that `collect` gets from a
target. `embedded`, which is part of the source tree only, trains the embedded pair with the same model and the same
loop.
"""
