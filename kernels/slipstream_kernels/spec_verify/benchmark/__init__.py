"""What `slipstream_kernels.spec_verify.bench` is made of: cases, predictions, checks, baselines, timing, figures."""
