# What people run. `make run` and `make test` are enough on a fresh machine that has Rust; see `make help`.

# The build folder is outside the clone, so that clones share it and a search of the clone finds source only.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/fatia/target
# rustup's folder, for shells that have not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
# Cargo.lock is part of the source: a build that would change it stops. `make test LOCKED=` lets it change.
LOCKED ?= --locked

# Programs of others by which tests judge the API; `deploy/ci/needs.sh test` puts them there.
export JUDGES ?= $(HOME)/.cache/fatia/judges
export JUDGE_PYTHON ?= $(JUDGES)/python/bin/python
export JUDGE_PROMTOOL ?= $(JUDGES)/promtool

# What `make run` gives `fatia demo`, such as `make run DEMO="--listen 127.0.0.1:9090 --months 3"`.
DEMO ?=

# The steps of `make test` are in order of price and share two cores and one build folder.
.NOTPARALLEL:

.PHONY: help
help:
	@echo "make run     build, and show a made-up company on http://127.0.0.1:8080 (its data: data/demo);"
	@echo "             elsewhere: make run DEMO=\"--listen 127.0.0.1:9090\""
	@echo "make web     build the web pages with Node; a program that is built after that has them"
	@echo "make test    every check, cheapest first (also: lint, test-domain, test-sqlite, test-postgres, test-web,"
	@echo "             test-browser)"
	@echo "make long    the integration tests in release, with the long variants (LONG_TESTS=1), and the spool's longest"
	@echo "make bench   the benchmarks: attribution, a month's report over HTTP, the door, what agents send"
	@echo "make fmt     format the source"
	@echo "make lint    format check, three feature sets, clippy, deploy/, cargo-deny if installed"
	@echo "make clean   remove the build folders and data/demo"

# What the pages take, and the tests of them.
HAS_NODE := deploy/ci/needs.sh has-node

# The program takes the pages in when the file that is touched is compiled, and cargo does not see a folder that is new.
WEB_SOURCE := $(shell find web/src web/vendor -type f 2>/dev/null) \
    $(wildcard web/*.html web/*.ts web/*.json) tests/conformance/openapi.json

.PHONY: web
web: web/dist/index.html

web/dist/index.html: web/node_modules/.package-lock.json $(WEB_SOURCE)
	cd web && npm run build
	touch src/http/page.rs

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	touch $@

# The pages where they can be built; a program without them says how.
.PHONY: web-if-node
web-if-node:
	@if ! $(HAS_NODE); then \
	    echo "There is no Node of the version that web/package.json asks for: the pages are not built, and the program says how."; \
	elif ! $(MAKE) --no-print-directory web; then \
	    echo "The web pages could not be built: the program says how they are." >&2; fi

# What is installed elsewhere is what is shown: a release build.
.PHONY: run
run: needs-build web-if-node
	$(CARGO) build $(LOCKED) --release --bin fatia
	"$(CARGO_TARGET_DIR)/release/fatia" demo $(DEMO)

.PHONY: test
test: needs-test fmt-check check clippy test-domain test-sqlite test-postgres test-web test-browser
	@echo "All checks passed."

# The same tests as `make test`, with longer runs where a test reads LONG_TESTS; release, since they are about volume.
# Then what is too long for every day: each fault at each call of a spool's life, and a week without a service.
.PHONY: long
long: export LONG_TESTS = 1
long: needs-test
	$(CARGO) test $(LOCKED) --release --test it -- --skip postgres
	$(CARGO) test $(LOCKED) --release --test it postgres
	$(CARGO) test $(LOCKED) --release --lib agent::spool -- --ignored --nocapture

.PHONY: bench
bench: needs-test
	$(CARGO) build $(LOCKED) --release --no-default-features --features agent --bin fatia-agent
	benches/agent_size.sh "$(CARGO_TARGET_DIR)/release/fatia-agent"
	$(CARGO) bench $(LOCKED) --bench attribute --bench report --bench door --bench ingest --bench windows

.PHONY: fmt
fmt:
	$(CARGO) fmt

.PHONY: lint
lint: needs-lint fmt-check check clippy
	@deploy/check.sh
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check licenses bans sources; \
	else echo "cargo-deny is not installed: licenses, bans and sources were not checked."; fi

.PHONY: clean
clean:
	$(CARGO) clean
	rm -rf data/demo web/dist

# The steps.

.PHONY: needs-build needs-lint needs-test
needs-build needs-lint needs-test: needs-%:
	@deploy/ci/needs.sh $*

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --check

# Three feature sets: floors 0 and 1 alone, the agent without the service, all. The compiler is the proof.
.PHONY: check
check:
	$(CARGO) check $(LOCKED) --no-default-features
	$(CARGO) check $(LOCKED) --no-default-features --features agent
	@if $(CARGO) tree $(LOCKED) --no-default-features --features agent -e normal --prefix none \
	    | grep -E '^(actix|sea-|sqlx|libsqlite3)'; then echo "the agent alone needs none of these" >&2; exit 1; fi
	$(CARGO) check $(LOCKED)

.PHONY: clippy
clippy:
	$(CARGO) clippy $(LOCKED) --all-targets -- -D warnings

.PHONY: test-domain
test-domain:
	$(CARGO) test $(LOCKED) --no-default-features --lib

.PHONY: test-sqlite
test-sqlite:
	$(CARGO) test $(LOCKED) --lib --bins
	$(CARGO) test $(LOCKED) --test it -- --skip postgres

# Starts a PostgreSQL of its own in the temporary folder, and ends it with the test process.
.PHONY: test-postgres
test-postgres:
	$(CARGO) test $(LOCKED) --test it postgres

.PHONY: test-web
test-web:
	@if $(HAS_NODE); then $(MAKE) --no-print-directory web; \
	else echo "There is no Node of the version that web/package.json asks for: the pages were not built."; fi

.PHONY: test-browser
test-browser:
	$(CARGO) build $(LOCKED) --bin fatia
	web/check.sh "$(CARGO_TARGET_DIR)/debug/fatia"
