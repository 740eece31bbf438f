"""A simulated serving engine: continuous batching whose step time comes from a roofline.

`virtual` runs it in virtual time for grids, `server` behind vLLM's HTTP dialect in real time; both
drive the same token-level core, `batching`. What is left out: docs/decisions/simulated-engine.md.
"""
