#!/usr/bin/env bash
# sqlite3: every journal mode, four writers at once, a killed writer, integrity_check after each.
. "$(dirname "$0")/common.bash"
need sqlite3 sqlite3
rows=${SQLITE_ROWS:-$(pick 40 1500)}
# A writer waits for three others, in a pool for as long as their transactions take.

sql() { sqlite3 -batch -bail "$@"; }

# writer DATABASE NUMBER: $rows transactions of two inserts each
writer() {
    {
        echo ".timeout 600000"
        for ((i = 0; i < rows; i++)); do
            echo "BEGIN IMMEDIATE;"
            echo "INSERT INTO event(writer, step, text) VALUES($2, $i, hex(randomblob(100)));"
            echo "UPDATE total SET count = count + 1;"
            echo "COMMIT;"
        done
    } | sql "$1"
}

for mode in delete truncate persist wal; do
    # Its whole name: for another sqlite3 asks getcwd, which fails for a moment after the DPU side
    # has come back (docs/internals/fuse.md, "Known faults").
    db=$PWD/$mode.db
    same "$mode" "$(sql "$db" "PRAGMA journal_mode=$mode;")" "journal mode"
    sql "$db" "CREATE TABLE event(id INTEGER PRIMARY KEY, writer INT, step INT, text TEXT);
        CREATE INDEX by_text ON event(text);
        CREATE TABLE total(count INT); INSERT INTO total VALUES(0);"
    pids=()
    for n in 1 2 3 4; do
        writer "$db" "$n" &
        pids+=($!)
    done
    while kill -0 "${pids[0]}" 2>/dev/null; do
        same 1 "$(sql "$db" ".timeout 600000" "SELECT (SELECT count(*) FROM event) =
            (SELECT count FROM total);")" "a reader's view in $mode mode"
        sleep 0.2
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "a writer failed in $mode mode"; done
    same $((4 * rows)) "$(sql "$db" 'SELECT count(*) FROM event;')" "rows in $mode mode"
    same $((4 * rows)) "$(sql "$db" 'SELECT count FROM total;')" "total in $mode mode"
    same ok "$(sql "$db" 'PRAGMA integrity_check;')" "integrity in $mode mode"

    # A big transaction is killed half-way: its journal must roll back.
    rm -f "$scratch/words"
    mkfifo "$scratch/words"
    sqlite3 -batch "$db" <"$scratch/words" &
    victim=$!
    exec 7>"$scratch/words"
    echo "PRAGMA cache_size=10; BEGIN; UPDATE event SET text = text || 'x';" >&7
    sleep 0.5
    kill -9 "$victim"
    wait "$victim" 2>/dev/null || true
    exec 7>&-
    same ok "$(sql "$db" ".timeout 600000" 'PRAGMA integrity_check;')" "integrity after a kill"
    same 0 "$(sql "$db" "SELECT count(*) FROM event WHERE text LIKE '%x';")" "rolled back rows"
    sql "$db" "DELETE FROM event WHERE id % 2; VACUUM;"
    same ok "$(sql "$db" 'PRAGMA integrity_check;')" "integrity after VACUUM"
done
