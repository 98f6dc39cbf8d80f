# The project's commands; each installs what it needs and says so. See docs/TESTING.md.
.DEFAULT_GOAL := help
.PHONY: help run gate test long bench

TARGET := $(or $(CARGO_TARGET_DIR),target)

# Of the sources that are built; what the measurements write is not among them.
COMMIT = $(shell git rev-parse --short=12 HEAD)$(shell git diff --quiet HEAD -- . ':!docs/figures' || echo -dirty)

help:
	@echo "make run     build, mount ./mnt with its data in ./data, until Ctrl-C"
	@echo "make gate    what a change must pass before it is committed (a few minutes)"
	@echo "make test    everything CI checks (up to an hour on 2 cores)"
	@echo "make long    long runs in pieces: hundreds of kills, full-size programs; goes on where it ended"
	@echo "make bench   every figure, beside its rivals, into docs/figures (about an hour); RADOS=URL: a pool, too"

run:
	@scripts/setup run
	@cargo build --release --bin outboard
	@mkdir -p mnt data
	@exec $(TARGET)/release/outboard run --data data mnt

gate:
	@scripts/setup run
	@cargo x gate

test:
	@scripts/setup test
	@cargo x test

long:
	@scripts/setup test
	@cargo x long

bench:
	@scripts/setup bench
	@OUTBOARD_COMMIT=$(COMMIT) cargo build --release --bin outboard --bin outboard-bench \
		$(if $(RADOS),--features rados)
	@$(TARGET)/release/outboard bench all --out docs/figures $(if $(RADOS),--rados '$(RADOS)')
