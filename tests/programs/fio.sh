#!/usr/bin/env bash
# fio --verify=crc32c: mixed block sizes; direct, buffered and mmap; written, then read again.
. "$(dirname "$0")/common.bash"
need fio fio
bytes=${FIO_BYTES:-$(pick 16m 512m)}

# run NAME ENGINE DIRECT BLOCKS [MORE...]
run() {
    local name=$1 engine=$2 direct=$3 blocks=$4
    shift 4
    local log=$scratch/$name
    fio --name="$name" --filename="$name" --ioengine="$engine" --direct="$direct" \
        --bssplit="$blocks" --size="$bytes" --rw=randwrite --verify=crc32c --verify_fatal=1 \
        --verify_dump=0 --do_verify=1 --randseed=20261121 --minimal "$@" >"$log" 2>&1 ||
        fail "$name: $(tail -5 "$log")"
    # A second process reads what the first one left.
    fio --name="$name" --filename="$name" --ioengine="$engine" --direct="$direct" \
        --bssplit="$blocks" --size="$bytes" --rw=randwrite --verify=crc32c --verify_fatal=1 \
        --verify_dump=0 --verify_only --randseed=20261121 --minimal "$@" >"$log" 2>&1 ||
        fail "$name, read again: $(tail -5 "$log")"
    rm "$name"
}

mixed=512/10:4k/40:8k/20:20k/20:128k/10
aligned=4k/40:8k/30:64k/20:1m/10
run buffered psync 0 $mixed
run synced psync 0 $mixed --fsync=64
run mmap mmap 0 4k/50:16k/50
run vectored pvsync 0 $mixed --overwrite=1
if fio --name=probe --filename=probe --ioengine=psync --direct=1 --size=64k --rw=write \
    --minimal >"$scratch/probe" 2>&1; then
    rm -f probe
    run direct psync 1 $aligned
    run queued libaio 1 $aligned --iodepth=16
    run odd psync 1 4k/50:12k/30:36k/20
else
    fail "O_DIRECT is refused: $(tail -3 "$scratch/probe")"
fi
run threads psync 0 4k/50:8k/50 --numjobs=4 --thread --offset_increment="$bytes"
