#!/usr/bin/env bash
# LevelDB's own db_bench: sequential, random and synced writes, reads, compaction, several
# threads, a killed writer. What was written must be found, all of it, also by the next process.
. "$(dirname "$0")/common.bash"
bench=$root/target/tools/bin/db_bench
[ -x "$bench" ] || skip "no db_bench; run scripts/setup test"
num=$(pick 5000 200000)

# run NUMBER BENCHMARKS [FLAG...]: in a process of its own; figures into $scratch/out
run() {
    local number=$1 what=$2
    shift 2
    "$bench" --db="$dir/db" --num="$number" --benchmarks="$what" "$@" \
        >"$scratch/out" 2>"$scratch/progress" ||
        fail "db_bench $what: $(tail -3 "$scratch/out" "$scratch/progress")"
    grep -E '^[a-z0-9]+ +:' "$scratch/out" || fail "db_bench $what measured nothing"
}

# found NUMBER: each readrandom of the last run found all of NUMBER keys
found() {
    local each
    each=$(grep -o '([0-9]* of [0-9]* found)' "$scratch/out" | sort -u)
    same "($1 of $1 found)" "$each" "keys found"
}

run "$num" fillseq,readrandom,readseq
found "$num"
run "$num" readrandom,compact,readrandom,overwrite,readrandom,readreverse --use_existing_db=1
found "$num"
run "$num" readrandom --use_existing_db=1 --threads=4
found "$num"
# Its number is a thousandth of what it is given.
run "$((num * 4))" fillsync
run "$num" fillrandom,readrandom,readseq
run "$num" fillseq --threads=1
"$bench" --db="$dir/db" --num=100000000 --benchmarks=overwrite --use_existing_db=1 \
    >"$scratch/out" 2>&1 &
writer=$!
sleep 2
kill -9 "$writer" || fail "the writer ended by itself: $(tail -3 "$scratch/out")"
wait "$writer" 2>/dev/null || true
run "$num" readrandom,readseq --use_existing_db=1
found "$num"
rm -rf "$dir/db"
