#!/usr/bin/env bash
# flock(1), flock(2), fcntl and lockf locks between processes: exclusion, deadlock, release.
. "$(dirname "$0")/common.bash"
need flock util-linux
compile locks
"$scratch/locks" "$dir" "$(pick 100 2000)"

# flock(1) as scripts use it: a counter under a lock loses nothing.
echo 0 >counter
for ((writer = 0; writer < 8; writer++)); do
    for ((i = 0; i < $(pick 15 200); i++)); do
        flock lockfile bash -c 'read -r n <counter; echo $((n + 1)) >counter'
    done &
done
wait
same $((8 * $(pick 15 200))) "$(cat counter)" "counter under flock"
setsid flock lockfile sleep 60 &
holder=$!
sleep 0.3
! flock -n lockfile true || fail "the lock was taken twice"
kill -9 -- "-$holder"
wait "$holder" 2>/dev/null || true
flock -w 10 lockfile true || fail "a dead process keeps its lock"
