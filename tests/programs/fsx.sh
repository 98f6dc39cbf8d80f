#!/usr/bin/env bash
# The file system exerciser: random reads, writes, maps, truncates and holes against a model.
. "$(dirname "$0")/common.bash"
fsx=$root/target/tools/bin/fsx
[ -x "$fsx" ] || skip "no fsx; run scripts/setup test"
for seed in $(seq "$(pick 4 30)"); do
    "$fsx" -q -f "$programs/fsx.toml" -P "$scratch" -S "$seed" -N "$(pick 2000 10000)" file \
        >"$scratch/log" 2>&1 || fail "seed $seed: $(tail -20 "$scratch/log")"
    rm -f file
done
