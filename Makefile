# The project's commands; each installs what it needs and says so. See docs/TESTING.md.
.DEFAULT_GOAL := help
.PHONY: help run gate test long bench

TARGET := $(or $(CARGO_TARGET_DIR),target)

help:
	@echo "make run     build, mount ./mnt with its data in ./data, until Ctrl-C"
	@echo "make gate    what a change must pass before it is committed (a few minutes)"
	@echo "make test    everything CI checks (about half an hour on 2 cores)"
	@echo "make long    long runs in pieces: hundreds of kills, full-size programs; goes on where it ended"
	@echo "make bench   figures against rivals: plain directory, FUSE passthrough, redis-server"

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
	@cargo build --release --bin outboard --bin outboard-bench
	@$(TARGET)/release/outboard bench link
	@$(TARGET)/release/outboard bench link --figure 6 --price pcie3x16 --seconds 0.2 --rounds 3
	@$(TARGET)/release/outboard bench fs
	@$(TARGET)/release/outboard bench fs --figure 7
	@$(TARGET)/release/outboard bench fs --figure 8
	@$(TARGET)/release/outboard bench fs --figure table2
	@$(TARGET)/release/outboard bench dds --all
