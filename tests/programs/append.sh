#!/usr/bin/env bash
# Eight writers append lines to one file at once: no line is lost, torn or doubled.
. "$(dirname "$0")/common.bash"
lines=$(pick 400 10000)
for n in 1 2 3 4 5 6 7 8; do
    seq -f "writer-$n line-%g" "$lines" | while read -r line; do echo "$line"; done >>log &
done
wait
same $((8 * lines)) "$(wc -l <log)" "lines"
same $((8 * lines)) "$(grep -cE '^writer-[1-8] line-[0-9]+$' log)" "whole lines"
same "" "$(sort log | uniq -d)" "lines seen twice"
for n in 1 2 3 4 5 6 7 8; do
    diff <(seq -f "writer-$n line-%g" "$lines") <(grep "^writer-$n " log) ||
        fail "writer $n's lines are out of order"
done
# A log that is rotated under its writer keeps every line.
(for ((i = 0; i < 200; i++)); do echo "line $i" >>rotated; done) &
for ((i = 0; i < 5; i++)); do
    sleep 0.02
    mv rotated "rotated.$i" 2>/dev/null || true
done
wait
same 200 "$(cat rotated* | sort -u | wc -l)" "lines over all rotations"
