"""Training of the embedded model pair (`make train`). No wheel contains this package.

The steps, in order: `train_tokenizer`, then `train` (four runs for the target, two for the draft). The training texts
come from `slipstream_engine.embedded.corpus`, which the wheel also needs: the workload of `slipstream bench --requests
embedded:COUNT` is generated from it.
"""
