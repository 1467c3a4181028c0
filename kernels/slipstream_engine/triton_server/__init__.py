"""The half of a Triton model that all engines share: tensors in, responses out."""
