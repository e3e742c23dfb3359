"""Errors of memorywalker, one class per boundary crossed.

    MemorywalkerError
    ├── WireError      a body that is not what its wire format promises      (also ValueError)
    ├── StoreError     a database that cannot be opened, read or written     (also RuntimeError)
    ├── SourceError    a file to import that is not what it claims to be     (also ValueError)
    ├── RewardError    a reward that is no finite number of a session        (also ValueError)
    ├── FilterError    a filter or a rule that cannot be understood          (also ValueError)
    ├── PageError      a page that cannot be written                         (also RuntimeError)
    ├── LaunchError    a port, certificate or command that cannot be used    (also RuntimeError)
    ├── ScriptError    a gateway script that cannot be played                (also ValueError)
    ├── ModelError     a model or tokenizer that cannot be loaded             (also ValueError)
    ├── RenderError    messages that a chat template cannot render exactly   (also ValueError)
    ├── ExportError    a dataset that cannot be written or does not add up   (also ValueError)
    ├── SplitError     parts of a dataset that make no sense or are empty    (also ValueError)
    └── TrainError     a training run that cannot start, go on or be written (also RuntimeError)

Every message is one line: expected, got, where. The command line prints it and exits with 1.
"""


class MemorywalkerError(Exception):
    """Base of all errors a user can meet; the message is one line."""


class WireError(MemorywalkerError, ValueError): ...


class StoreError(MemorywalkerError, RuntimeError): ...


class SourceError(MemorywalkerError, ValueError):
    """A file to import that is not what it claims to be."""


class FilterError(MemorywalkerError, ValueError):
    """A filter, a time, a size or a redaction rule that cannot be understood."""


class RewardError(MemorywalkerError, ValueError): ...


class PageError(MemorywalkerError, RuntimeError): ...


class LaunchError(MemorywalkerError, RuntimeError): ...


class ScriptError(MemorywalkerError, ValueError): ...


class ModelError(MemorywalkerError, ValueError): ...


class RenderError(MemorywalkerError, ValueError): ...


class ExportError(MemorywalkerError, ValueError): ...


class SplitError(MemorywalkerError, ValueError): ...


class TrainError(MemorywalkerError, RuntimeError): ...
