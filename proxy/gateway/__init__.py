"""Serve a policy behind the wire formats that the harnesses speak."""
