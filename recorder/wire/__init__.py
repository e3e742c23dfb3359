"""Bytes <-> messages, one module per wire format."""
