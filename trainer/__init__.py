"""Tokens, branches, schemes, engines, exports, drift. The only place with torch."""
