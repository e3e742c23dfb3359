"""The one command line, a thin front door: each command imports its package when it is called."""


def main() -> None:
    raise SystemExit(2)
