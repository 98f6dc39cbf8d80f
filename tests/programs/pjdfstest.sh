#!/usr/bin/env bash
# pjdfstest: what POSIX asks of names, modes, owners and times; exceptions in pjdfstest.toml.
. "$(dirname "$0")/common.bash"
[ "$(id -u)" = 0 ] || skip "not root; the suite changes users"
suite=$root/target/tools/bin/pjdfstest
[ -x "$suite" ] || skip "no pjdfstest; run scripts/setup test"
chmod 755 .
"$suite" -c "$programs/pjdfstest.toml" -p "$dir" >"$scratch/log" 2>&1 || {
    cp "$scratch/log" "$root/target/pjdfstest.log"
    grep -E 'FAILED|Summary' "$scratch/log" >&2
    fail "some tests failed; all of it is in target/pjdfstest.log"
}
grep Summary "$scratch/log"
