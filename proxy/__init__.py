"""Between harness and model: sees the bytes, never disturbs them."""
