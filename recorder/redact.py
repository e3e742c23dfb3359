"""What may not be stored is replaced before it is: `[redacted:NAME:8hex]`, the same text always by the same mark.

Rules are regular expressions over texts as the model reads them: a secret cut in pieces by a stream, or written with
escapes, is found; JSON stays JSON, and a body in which nothing is found stays byte for byte. The call says what was
done in a header of ours on either side, `x-memorywalker-redacted: email=2, key=1`. If a rule fails, the call loses
its bodies.
"""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from recorder import canonical, rewrite
from recorder.call import Call, Outcome
from recorder.errors import FilterError

HEADER = "x-memorywalker-redacted"
FAILED = "recorder: a redaction rule failed, the bodies were not stored"

BUILTIN = {
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}",
    "key": r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpors]-[\w-]{10,}|"
    r"A(?:KIA|SIA)[0-9A-Z]{16}|AIza[\w-]{30,}|hf_\w{20,}|npm_\w{30,}|pypi-[\w-]{30,}|"
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
    "ip": r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b",
    "home": r"(?<=/home/)[^/\s\"'<>]+|(?<=/Users/)[^/\s\"'<>]+|(?<=\\Users\\)[^\\\s\"'<>]+",
}
"""Names that --redact knows. Keys of the forms that their makers document; account names in paths of home folders."""
SHORT_CHARS = 200
CLEAN_TEXTS = 200_000
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    pattern: re.Pattern[str]
    needs: str = ""
    """Text without which the pattern cannot fit; a search that is not made costs nothing."""


def rules(words: Iterable[str]) -> tuple[Rule, ...]:
    """Each word is a builtin name or a file of lines `NAME = REGEX`; `#` begins a comment. FilterError otherwise."""
    found: list[Rule] = []
    for word in words:
        if word in BUILTIN:
            found.append(Rule(word, re.compile(BUILTIN[word]), "@" if word == "email" else ""))
            continue
        try:
            lines = Path(word).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            said = getattr(e, "strerror", None) or e
            raise FilterError(f"redact: expected {', '.join(BUILTIN)} or a file of rules, got {said} at {word}") from e
        found += [
            _rule(line, f"line {n} of {word}") for n, line in enumerate(lines, 1) if line.strip()[:1] not in ("", "#")
        ]
    return tuple(found)


def _rule(line: str, where: str) -> Rule:
    name, equals, pattern = (part.strip() for part in line.partition("="))
    if not equals or not _NAME.fullmatch(name):
        raise FilterError(f"redact: expected NAME = REGEX, got {line.strip()[:60]!r} at {where}")
    try:
        made = re.compile(pattern)
    except re.error as e:
        raise FilterError(f"redact: expected a regular expression, got {e} at {where}") from e
    if made.match(""):
        raise FilterError(f"redact: expected a regular expression that needs text, got one that fits none at {where}")
    return Rule(name, made)


class Redactor:
    """Call -> Call, to be given to whatever stores."""

    def __init__(self, rules: Iterable[Rule], *, key: bytes = b"") -> None:
        """`key`: whoever lacks it cannot test guesses against the marks (see `secret`)."""
        self._rules = tuple(rules)
        self._key = key
        self._found: Counter[str] = Counter()
        self._clean: set[bytes] = set()
        """Digests of long texts in which nothing was found: a history comes again with every call."""

    def __call__(self, call: Call) -> Call:
        try:
            self._found.clear()
            asked = rewrite.rewritten(replace(call, response_body=b""), self._leaf)
            request_headers = self._headers(asked.request_headers)
            answered = rewrite.rewritten(replace(call, request_body=b""), self._leaf)
            response_headers = self._headers(answered.response_headers)
            error = self._text(call.error)
        except Exception:  # noqa: BLE001  what could not be redacted is not stored
            cut = call.outcome if call.status is None else Outcome.TRUNCATED
            return replace(call, request_body=b"", response_body=b"", outcome=cut, error=FAILED)
        return replace(
            call,
            request_headers=request_headers,
            request_body=asked.request_body,
            response_headers=response_headers,
            response_body=answered.response_body,
            error=error,
        )

    def _headers(self, headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Redacted like the body of their side, and what was found there so far, told in one more."""
        made = tuple((name, self._text(value)) for name, value in headers)
        told = ", ".join(f"{name}={count}" for name, count in sorted(self._found.items()))
        self._found.clear()
        return (*made, (HEADER, told)) if told else made

    def _leaf(self, text: str, path: tuple[str, ...]) -> str:
        if len(text) < SHORT_CHARS:
            return self._inside(text, path)
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._clean:
            return text
        made = self._inside(text, path)
        if made == text:
            if len(self._clean) >= CLEAN_TEXTS:
                self._clean.clear()
            self._clean.add(digest)
        return made

    def _inside(self, text: str, path: tuple[str, ...]) -> str:
        """JSON inside a text stays JSON whatever the rules take."""
        made = self._text(text, count=False) if text[:1] in ("{", "[") else text
        if made != text and _is_json(text):
            return rewrite.literals(text, lambda inner, _: self._text(inner), path)
        return self._text(text)

    def _text(self, text: str, *, count: bool = True) -> str:
        for rule in self._rules:
            if rule.needs in text:
                text = rule.pattern.sub(lambda found, n=rule.name: self._mark(n, found[0], count), text)  # type: ignore[misc]
        return text

    def _mark(self, name: str, text: str, count: bool) -> str:
        self._found[name] += count
        data = text.encode("utf-8", "surrogatepass")
        return f"[redacted:{name}:{blake2b(data, key=self._key, digest_size=4).hexdigest()}]"


def _is_json(text: str) -> bool:
    try:
        canonical.loads(text)
    except ValueError:
        return False
    return True


def secret(home: Path) -> bytes:
    """The key of this user's marks, made when first asked for: the same text gets the same mark in every run."""
    path = home / "redact.key"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    return path.read_bytes()


def redactor(words: Iterable[str], *, home: Path) -> Redactor | None:
    """What `--redact WORD...` asks for; None = nothing. FilterError when a word is no rule."""
    made = rules(words)
    return Redactor(made, key=secret(home)) if made else None
