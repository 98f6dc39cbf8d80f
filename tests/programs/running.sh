#!/usr/bin/env bash
# A program that runs is not written to, emptied or lost. With FUSE's ATOMIC_O_TRUNC an open for
# reading that truncates (O_RDONLY|O_TRUNC) emptied the file before the kernel refused it, the
# program died of it, and the refusal, too, was lost: pjdfstest's open::etxtbsy, one run in three on
# a busy machine.
. "$(dirname "$0")/common.bash"
need python3 python3
cp "$(command -v sleep)" program
sum=$(sha256sum <program)
for flags in O_WRONLY O_RDWR 'O_RDONLY|os.O_TRUNC' 'O_WRONLY|os.O_TRUNC'; do
    for ((i = 0; i < $(pick 10 200); i++)); do
        ./program 100 &
        python3 - "$flags" "$!" <<'EOF' || fail "$flags"
import errno, os, sys
flags, pid = eval("os." + sys.argv[1]), sys.argv[2]
while os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "program":
    pass
try:
    os.open("program", flags)
    sys.exit("opened a program that runs")
except OSError as error:
    if error.errno != errno.ETXTBSY:
        raise
EOF
        kill %1 || fail "the program died of $flags"
        wait || true
    done
done
same "$sum" "$(sha256sum <program)" "the program after that"
# Nobody runs it any more: an open for reading may empty it.
python3 -c 'import os; os.close(os.open("program", os.O_RDONLY | os.O_TRUNC))'
same 0 "$(stat -c %s program)" "size of what was emptied"
