"""The embedded engine as an OpenAI application, with the four additions of Slipstream's engine contract.

request     `vllm_xargs` with `slipstream_draft_length`, `slipstream_adaptive`, `slipstream_protect`, `slipstream_class`
            and `slipstream_resume_token_ids`
answer      `metrics.speculative_decoding`, its `engine_seconds`, and token ids on request (`return_token_ids`)
GET         /slipstream
PUT, POST   /slipstream/limit, /slipstream/stop_drafting
"""
