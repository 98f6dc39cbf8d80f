#!/usr/bin/env bash
# The project's conformance suite, through system calls in this directory.
. "$(dirname "$0")/common.bash"
suite=${OUTBOARD_BIN:-$root/target/test-fast}/conformance
[ -x "$suite" ] || skip "no $suite; run make test"
"$suite" --front "${OUTBOARD_FRONT:-dir}:$dir" >"$scratch/log" 2>&1 || {
    cp "$scratch/log" "$root/target/conformance.log"
    grep -iE 'fail' "$scratch/log" | head -30 >&2
    fail "some cases failed; all of it is in target/conformance.log"
}
tail -1 "$scratch/log"
