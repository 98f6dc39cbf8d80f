#!/usr/bin/env bash
# stress-ng --verify: its file system stressors, each for a few seconds with its own checks.
. "$(dirname "$0")/common.bash"
need stress-ng stress-ng
. "$programs/stress-ng.exceptions"

stressors=$(stress-ng --class 'filesystem?' 2>&1 | sed -n 's/^class .* stressors: //p')
[ -n "$stressors" ] || fail "stress-ng names no stressors"
failed=
for stressor in $stressors; do
    case " $not_about_a_volume $expected_failures " in *" $stressor "*) continue ;; esac
    case $stressor in
    hdd | fallocate | iomix) bytes="--$stressor-bytes 16m" ;;
    *) bytes= ;;
    esac
    # shellcheck disable=SC2086
    if ! timeout 120 stress-ng --"$stressor" 2 $bytes --timeout "$(pick 1 20)" --verify \
        --temp-path "$dir" >"$scratch/log" 2>&1; then
        echo "$stressor: $(head -5 "$scratch/log")" >&2
        failed="$failed $stressor"
    fi
done
[ -z "$failed" ] || fail "stressors:$failed"
