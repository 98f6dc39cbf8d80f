#!/usr/bin/env bash
# One turn of a program that goes on while parts of a cluster, and mounts, are killed:
#   soak.bash fio|sqlite|git DIR OTHER STATE
# DIR is the program's directory at one host, OTHER the same at another, STATE a directory beside the
# volume that says what was acknowledged. Each turn begins with that it is all there. A turn may be
# cut off at any moment, as its mount dies: what it left begun is cleared by the next.
set -euo pipefail
export LC_ALL=C TZ=UTC
verb=$1 dir=$2 other=$3 state=$4
mkdir -p "$dir" "$state"
acked=$(cat "$state/acked" 2>/dev/null || echo 0)

fail() {
    echo "FAIL: $*" >&2
    exit 1
}
acknowledged() {
    echo "$1" >"$state/acked.new"
    mv "$state/acked.new" "$state/acked"
}

verify() {
    cd "$state" # fio leaves a file where it is
    local log=$state/fio.log seed=$((acked + 1))
    # fio leaves a file where it runs.
    cd "$state"
    rm -f "$dir/file"
    set -- --name=soak --ioengine=psync --bssplit=512/10:4k/40:8k/20:20k/20:128k/10 --size=2m \
        --rw=randwrite --verify=crc32c --verify_fatal=1 --verify_dump=0 --randseed="$seed" --minimal
    fio --filename="$dir/file" --do_verify=1 "$@" >"$log" 2>&1 || fail "fio: $(tail -5 "$log")"
    fio --filename="$other/file" --verify_only "$@" >"$log" 2>&1 ||
        fail "fio at the other host: $(tail -5 "$log")"
    acknowledged "$seed"
}

sql() { sqlite3 -batch -bail "$dir/soak.db" ".timeout 60000" "$1"; }

insert() {
    sql "CREATE TABLE IF NOT EXISTS event(n INTEGER PRIMARY KEY, text TEXT);" >/dev/null
    # What was begun when the turn was cut off may have been done.
    local count last=$((acked + 8))
    count=$(sql "SELECT count(*) FROM event WHERE n <= $acked;")
    [ "$count" = "$acked" ] || fail "sqlite: $count rows of $acked that were committed"
    [ "$(sql 'PRAGMA integrity_check;')" = ok ] || fail "sqlite: $(sql 'PRAGMA integrity_check;')"
    while [ "$acked" -lt "$last" ]; do
        acked=$((acked + 1))
        sql "INSERT OR REPLACE INTO event VALUES($acked, hex(randomblob(500)));"
        acknowledged "$acked"
    done
}

commit() {
    export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
    export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=test@example.org
    export GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=test@example.org
    local repository=$dir/repository count
    # It would be looked over for longer and longer.
    if [ "$acked" = 0 ] || [ "$acked" -ge 60 ]; then
        acknowledged 0
        acked=0
        rm -rf "$repository"
        git init -q -b main "$repository"
        git -C "$repository" config gc.auto 0
    fi
    cd "$repository"
    find .git -name '*.lock' -delete
    if [ "$acked" -gt 0 ]; then
        git reset -q --hard
        # Where its mount is dead it asks for a directory again and again, and says so each time.
        timeout 60 git fsck --full --strict --no-progress 2>&1 | tail -c 2000 >"$state/git.log" ||
            fail "git fsck: $(tail -5 "$state/git.log")"
        count=$(git rev-list --count HEAD)
        [ "$count" -ge "$acked" ] || fail "git: $count commits of $acked that were made"
        acked=$count
    fi
    for file in 1 2 3; do
        seq "$acked" $((acked + 200 * file)) >"file-$file"
        git add "file-$file"
    done
    echo "$acked" >number
    git add number
    git commit -q -m "commit $acked"
    acknowledged $((acked + 1))
}

case $verb in
fio) verify ;;
sqlite) insert ;;
git) commit ;;
*) fail "unknown verb $verb" ;;
esac
